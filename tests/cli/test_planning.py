"""`wattsmith plan` as a user has it."""

import json
from functools import partial

import pytest

pytest.importorskip("scipy", reason="THE COMMAND plan IS NOT TESTED: scipy is not installed")
pytest.importorskip("yaml", reason="THE COMMAND plan IS NOT TESTED: PyYAML is not installed")


JOBS = """
jobs:
  - {name: first, steps: 3600, step: 1s, power: 100W, memory: 8GiB}
  - {name: second, steps: 3600, step: 1s, power: 100W, memory: 8GiB, after: [first]}
"""
POOL = """
nodes:
  - {name: node, device: a100, count: 2, memory: 40GiB, idle: 20W}
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "jobs.yaml").write_text(JOBS)
    (tmp_path / "pool.yaml").write_text(POOL)
    (tmp_path / "carbon.csv").write_text(
        "time,carbon_intensity\n" + "".join(f"2026-01-01T{hour:02}:00Z,{100 + hour % 6 * 50}\n" for hour in range(24))
    )
    return tmp_path


@pytest.fixture
def said(wattsmith_here, files):
    """Runs `wattsmith plan` on the files."""
    jobs, pool = files / "jobs.yaml", files / "pool.yaml"
    return partial(wattsmith_here, "plan", jobs, "--pool", pool, "--now", "2026-01-01T00:00Z")


def test_the_table_says_who_runs_where_and_when(said):
    out, _ = said("--power-budget", "1kW", "--objective", "time")
    plain = " ".join(out.split())
    assert "first node 0 01 Jan 00:00 01 Jan 01:00 as found 100 W 360 kJ" in plain
    assert "2 jobs done by 01 Jan 02:00 UTC, 720 kJ" in plain


def test_the_plan_and_its_schedules_come_as_json_files_and_a_picture(said, files):
    out, _ = said("--json", "--schedules", files / "out", "--plot", files / "plan.svg")
    told = json.loads(out)
    assert told["plan"]["energy_j"] == pytest.approx(720e3)
    assert told["schedules"][0] == json.loads((files / "out" / "node.json").read_text())
    assert "<svg" in (files / "plan.svg").read_text()


def test_data_workers_have_a_column_where_a_job_has_some(said, files):
    without, _ = said()
    assert "data workers" not in without
    (files / "jobs.yaml").write_text(JOBS.replace("after:", "data_work: {made: 4s, worker: 5W}, after:"))
    out, _ = said("--objective", "time")
    assert "setting data workers power energy" in " ".join(out.split())
    assert "second node 0 01 Jan 01:00 01 Jan 02:00 as found 6 130 W 468 kJ" in " ".join(out.split())
    told = json.loads(said("--json")[0])
    assert [one["data_workers"] for one in told["plan"]["stretches"]] == [None, 6]


def test_carbon_moves_jobs_to_clean_hours(said, files):
    out, _ = said("--objective", "carbon", "--carbon", files / "carbon.csv", "--deadline", "12h", "--json")
    assert {one["from_s"] % 86400 for one in json.loads(out)["plan"]["stretches"]} == {0.0, 21600.0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--power-budget", "30W"), "draws 40 W when idle"),
        (("--power-budget", "10"), "has no unit"),
        (("--power-budget", "-5W"), "must be positive"),
        (("--deadline", "2025-01-01"), "is in the past"),
        (("--deadline", "whenever"), "is no time"),
        (("--objective", "glory"), "energy, time, carbon, cost"),
        (("--objective", "carbon"), "--carbon FILE.csv"),
        (("--tariff", "nowhere.csv"), "cannot be read"),
        (("--plot", "plan.docx"), "cannot be written"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(said, arguments, says):
    _, err = said(*arguments, code=2)
    assert says in " ".join(err.split())


def test_a_job_that_finds_no_place_in_time_is_told_and_the_exit_code_is_1(said):
    out, _ = said("--deadline", "90min", code=1)
    assert "not planned second: it takes 1 h 00 min at its fastest" in " ".join(out.split())
