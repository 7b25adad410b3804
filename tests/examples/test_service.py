"""The job and the pool of the examples, with a real service; and what it then tells Prometheus, as deploy/ uses it."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.examples.deployed import metrics_used
from tests.serve.real_service import WATTSMITH, asking, served

pytest.importorskip("torch", reason="THE JOB OF THE EXAMPLES IS NOT RUN: PyTorch is not installed")

EXAMPLES = Path(__file__).parents[2] / "examples" / "service"


def wattsmith(*arguments, **environment):
    return subprocess.run(
        [*WATTSMITH, *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What `submit --wait` said of the job, and what the service tells Prometheus afterwards."""
    home = tmp_path_factory.mktemp("service") / "home"
    with served(home, (EXAMPLES / "pool.yaml").read_text(), "--budget", "500W") as (url, token, _):
        who = {"WATTSMITH_SERVER": url, "WATTSMITH_TOKEN": token}
        done = wattsmith("submit", EXAMPLES / "job.yaml", "--wait", "--json", **who)
        assert done.returncode == 0, done.stderr
        log = wattsmith("jobs", "log", "j-000001", **who).stdout
        with asking(url, token) as service:
            metrics = service.get(f"{url}/metrics").text
    return json.loads(done.stdout.splitlines()[-1]), log, metrics


def test_the_job_is_done_at_once_and_each_step_of_it_was_seen(ran):
    job, log, _ = ran
    assert (job["name"], job["state"], len(job["attempts"])) == ("small-network", "done", 1)
    assert job["attempts"][0]["result"]["steps"] == 200
    assert job["attempts"][0]["node"] == "here"
    assert re.findall(r"^step (\d+): loss", log, re.MULTILINE) == ["50", "100", "150", "200"]


def test_the_job_with_a_model_can_be_submitted():
    done = wattsmith("submit", EXAMPLES / "job_with_model.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "its step was traced: batch 64, fp32, train" in done.stdout


def test_what_the_dashboard_and_the_alerts_ask_of_a_service_is_what_it_tells(ran):
    _, _, metrics = ran
    told = set(re.findall(r"^# TYPE (wattsmith_\w+)", metrics, re.MULTILINE))
    # Nothing measures this machine's power perhaps; then the figure is absent, and never 0.
    told |= {"wattsmith_service_pool_power_watts"}
    asked = {name for name in metrics_used() if name.startswith("wattsmith_service_")}
    assert asked - told == set()
    assert told - asked == set()  # and everything that it tells is shown
    assert 'wattsmith_service_jobs{state="done"} 1.0' in metrics
