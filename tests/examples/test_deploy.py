"""What deploy/ holds fits the program: options that there are, metrics that it tells, files that their readers take."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest
from tests.examples.deployed import DASHBOARD, DEPLOY, metrics_used, panels, read_yaml, rules
from tests.serve.real_service import WATTSMITH

from wattsmith.control.allow import Peer, read_allow_list
from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.terms.control import KnobCard, NotPermitted
from wattsmith.terms.errors import ExtraNeeded

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
WHERE = "/opt/wattsmith/bin/wattsmith"


def test_what_is_asked_of_a_measured_run_is_what_it_tells(tmp_path):
    machine = SimulatedNvml.create(tmp_path / "nvml", gpus=1)
    machine.play(0, 0.5)
    try:
        simulated = machine.environment()
    except ExtraNeeded as no_compiler:
        pytest.skip(f"NOT CHECKED on a simulated GPU: {no_compiler}")
    scrape = (
        "import sys, time, urllib.request\n"
        "port, *wanted = sys.argv[1:]\n"
        "for _ in range(100):\n"  # until gauges were looked at twice
        "    told = urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics').read().decode()\n"
        "    if all(name in told for name in wanted):\n"
        "        break\n"
        "    time.sleep(0.3)\n"
        "print(told)"
    )
    port, wanted = str(free_port()), {name for name in metrics_used() if not name.startswith("wattsmith_service_")}
    command = [*WATTSMITH, "measure", "-q", "--prometheus", port, "--", sys.executable, "-c", scrape, port, *wanted]
    done = subprocess.run(command, env=os.environ | simulated, capture_output=True, text=True, check=True, timeout=60)
    told = set(re.findall(r"^(wattsmith_\w+)", done.stdout, re.MULTILINE))
    assert wanted - told == set()


def free_port():
    import socket

    with socket.socket() as any_that_is_free:
        any_that_is_free.bind(("127.0.0.1", 0))
        return any_that_is_free.getsockname()[1]


def test_the_dashboard_has_the_shape_that_grafana_takes():
    assert DASHBOARD["schemaVersion"] >= 36  # from which on a datasource is an object
    assert DASHBOARD["id"] is None  # else an import would replace whatever has that number
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert {panel["type"] for panel in DASHBOARD["panels"]} == {"row", "stat", "timeseries"}
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__all"}
    assert used == variables == {"datasource", "measured", "service"}
    for panel in panels():
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0


def test_no_two_panels_lie_on_one_another():
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_every_alert_says_what_happened_and_what_to_do():
    assert all(rule["annotations"]["summary"] and rule["annotations"]["description"] for rule in rules())
    assert {rule["labels"]["severity"] for rule in rules()} <= {"info", "warning", "critical"}
    tried = (DEPLOY / "prometheus" / "wattsmith.rules.test.yml").read_text()
    assert [rule["alert"] for rule in rules() if rule["alert"] not in tried] == []


def test_prometheus_takes_its_files(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("THE ALERT RULES ARE NOT TRIED OUT: there is no promtool; Debian's package prometheus has it")
    shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus")
    (tmp_path / "prometheus" / "wattsmith-token").write_text("ws_token")
    for check in (["check", "config", "prometheus.yml"], ["test", "rules", "wattsmith.rules.test.yml"]):
        done = subprocess.run(
            [promtool, *check], cwd=tmp_path / "prometheus", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_scrape_jobs_are_those_that_the_rules_name():
    scraped = read_yaml("prometheus.yml")
    jobs = {one["job_name"] for one in scraped["scrape_configs"]}
    named = {name for rule in rules() for name in re.findall(r'job="([\w-]+)"', rule["expr"])}
    assert named <= jobs == {"wattsmith-measure", "wattsmith-service"}


def unit(path):
    read = RawConfigParser(strict=False, interpolation=None)
    read.optionxform = str
    read.read_string(path.read_text())
    return read


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_commands_with_options_that_there_are(path):
    import typer

    from wattsmith.cli import app

    service = unit(path)["Service"]
    for words in (shlex.split(service[name]) for name in ("ExecStart", "ExecStopPost") if name in service):
        assert words[0] == WHERE
        command, rest = typer.main.get_command(app), words[1:]
        while rest and rest[0] in getattr(command, "commands", {}):
            command, rest = command.commands[rest[0]], rest[1:]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known
        assert {"control", "serve", "agent", "restore"} & set(words[1:3])


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_a_unit(path, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("UNITS ARE NOT VERIFIED: there is no systemd-analyze; `apt install systemd` has it")
    # The program is looked for too: here it is where the tests run.
    text = path.read_text().replace(WHERE, str(Path(sys.executable).parent / "wattsmith"))
    (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / path.name], capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if path.name in line]
    assert (done.returncode, said) == (0, [])


def test_units_end_processes_so_that_settings_come_back_and_jobs_go_on():
    control, service = (
        unit(DEPLOY / "systemd" / f"wattsmith-{name}.service")["Service"] for name in ("control", "serve")
    )
    assert control["KillMode"] == "control-group"  # with `mixed`, watchdogs of a crashed daemon are killed first
    assert control["ExecStopPost"].endswith(control["ExecStart"].partition("--state ")[2])
    assert service["KillMode"] == "process"
    assert "--host 127.0.0.1" in service["ExecStart"]
    assert service["User"] == "wattsmith"


def test_the_allow_list_lets_the_user_of_the_units_set_power_limits(tmp_path):
    written = (DEPLOY / "systemd" / "allow.toml").read_text()
    assert 'users = ["wattsmith"]' in written
    path = tmp_path / "allow.toml"
    path.write_text(written.replace('["wattsmith"]', "[4711]"))  # which need not be there
    path.chmod(0o600)
    allowed = read_allow_list(path)
    agent, somebody = (Peer(pid=1, uid=uid, gids=frozenset()) for uid in (4711, 4712))
    limit = KnobCard(name="gpu:0/power_limit", device="gpu:0", identity="GPU-1", title="a GPU", unit="W")
    allowed.check_set(agent, limit, 300.0)
    allowed.check_hold(agent, "gpu:0", [limit], 600.0, shared=True)
    with pytest.raises(NotPermitted, match="may not set gpu:0/power_limit"):
        allowed.check_set(somebody, limit, 300.0)


@pytest.mark.parametrize("folder", ["deploy", "examples"])
def test_the_table_of_a_folder_names_every_file_and_each_link_leads_somewhere(folder):
    here = DEPLOY.parent / folder
    links = set(re.findall(r"\]\(([^)]+)\)", (here / "README.md").read_text()))
    there = {
        str(path.relative_to(here)) for path in here.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert there - links == {"README.md"}
    assert {link for link in links if not (here / link).exists()} == set()
