"""The agent: nothing that it saw is lost, and its schedule is followed by the service's clock, on simulated GPUs."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.serve.odd_server import OddServer

from wattsmith.serve.agent import Agent, AgentOptions, settings_of, usual_name
from wattsmith.serve.agent_clock import ServerClock, since_boot_s
from wattsmith.serve.agent_sending import ScheduleFolder, Sender
from wattsmith.serve.agent_spool import Spool
from wattsmith.serve.client import Server
from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.terms.errors import BadInput, ExtraNeeded
from wattsmith.terms.facts import as_plain
from wattsmith.terms.schedule import SettingSource, Shape
from wattsmith.terms.service import ClientAbout, Report
from wattsmith.terms.work import Setting
from wattsmith.terms.work_schedule import (
    DeviceIdentity,
    Evidence,
    Phase,
    PhaseSetting,
    Site,
    Timing,
    Watch,
    Work,
    WorkSchedule,
)

pytest.importorskip("httpx", reason="THE AGENT IS NOT TESTED: httpx is not installed")

HOUR_S = 3600.0
WATTSMITH = str(Path(sys.executable).with_name("wattsmith"))


def schedule(limit_w=300.0, *, now_s, serial=1, holds_s=60.0, client="desk-3", default_w=600.0):
    """GPU 0 at LIMIT_W for a while, as JSON."""
    phase = PhaseSetting(device="gpu:0", phase=Phase.STEADY, setting=Setting(power_limit_w=limit_w))
    work = Work(
        job="resnet",
        phases=(phase,),
        shape=Shape(),
        timing=Timing(),
        site=Site(node=client, devices=("gpu:0",)),
        evidence=Evidence(source=SettingSource.MATCHED),
    )
    default = PhaseSetting(device="gpu:0", phase=Phase.STEADY, setting=Setting(power_limit_w=default_w))
    made = WorkSchedule(
        client=client,
        issued_s=now_s,
        valid_from_s=now_s - 1,
        valid_until_s=now_s + holds_s,
        serial=serial,
        devices=(DeviceIdentity(device="gpu:0", name="h200"),),
        works=(work,),
        watch=Watch(lease_s=30.0),
        safe_default=(default,),
    )
    return as_plain(made)


# What is said and heard


@pytest.fixture
def odd():
    server = OddServer()
    with server.running():
        yield server


@pytest.fixture
def sender(tmp_path):
    """Makes what talks to the service at a URL; its reports are made of nothing but numbers."""
    made = []

    def make(url, boot="boot-a", token=None):
        folder = tmp_path / "state"
        said = []
        spool = Spool(folder / "reports")
        one = Sender(
            name="desk-3",
            about=ClientAbout(version="0.1.0", host="desk"),
            server=Server(url, "ws_1_old", patience_s=0, clock_s=since_boot_s),
            spool=spool,
            clock=ServerClock(folder / "clock.json"),
            schedules=ScheduleFolder(folder / "schedule.json", "desk-3", said.append),
            tell=said.append,
            renew_token=token,
            chance=random.Random(1),
        )
        made.append(one)
        return one, said, lambda *numbers: [spool.append(report(boot, number)) for number in numbers]

    yield make
    for one in made:
        one.server.close()
        one.spool.close()


def report(boot, number):
    return as_plain(Report(boot=boot, number=number, time_s=float(number)))


def test_what_it_is_goes_first_then_reports_in_one_batch(odd, sender):
    one, said, see = sender(odd.url)
    see(1, 2, 3)
    assert one.step() is None
    assert [path for _, path, _ in odd.asked] == ["/api/v1/clients/desk-3/hello", "/api/v1/clients/desk-3/telemetry"]
    assert odd.asked[0][2]["host"] == "desk"
    assert odd.headers[0]["Authorization"] == "Bearer ws_1_old"
    assert odd.numbers() == [1, 2, 3]
    assert said == []


def test_a_service_that_is_away_for_a_while_misses_nothing(sender):
    odd = OddServer()
    with odd.running():
        one, said, see = sender(odd.url)
        see(1)
        one.step()
    for number in range(2, 700):
        see(number)
    pauses = [one.step() for _ in range(4)]
    assert all(0.25 * 2**n <= pause_s <= 0.5 * 2**n for n, pause_s in enumerate(pauses))
    assert len(said) == 1  # told once
    assert "no service answers" in said[0]
    with odd.running(odd.port):
        while one.step() is not None:
            pass
    assert odd.numbers() == list(range(1, 700))
    assert odd.posts == [1, 500, 198]
    assert said[1].endswith("answers again")


def test_an_answer_that_is_lost_makes_duplicates_and_no_gap(odd, sender):
    one, _, see = sender(odd.url)
    see(1, 2)
    odd.forgets_answer = 1
    assert one.step() > 0
    see(3)
    assert one.step() is None
    assert odd.numbers() == [1, 2, 3]
    assert (one.accepted, one.duplicates) == (1, 2)


def test_a_busy_service_says_how_long_to_wait(odd, sender):
    one, _, see = sender(odd.url)
    see(1)
    odd.answers = [(503, {"Retry-After": "7"}, {"error": {"message": "the database is away", "fields": []}})]
    assert 7.0 <= one.step() <= 8.4
    assert one.step() is None
    assert odd.numbers() == [1]


@pytest.mark.parametrize("says", [{"accepted": None}, {"accepted": 0, "duplicates": 0}, {"accepted": "all"}])
def test_reports_are_kept_until_the_service_says_that_it_has_them(odd, sender, says):
    one, _, see = sender(odd.url)
    see(1)
    odd.says = says
    assert one.step() > 0
    odd.says = {}
    assert one.step() is None
    assert one.duplicates == 1


def test_a_report_that_is_refused_holds_up_no_other(odd, sender, monkeypatch):
    one, said, see = sender(odd.url)

    def answer(path, body, headers, usually=odd.answer):
        if path.endswith("/telemetry") and any(each["number"] == 3 for each in body["reports"]):
            return 422, {}, {"error": {"message": "reports[0].number: is odd", "fields": []}}
        return usually(path, body, headers)

    monkeypatch.setattr(odd, "answer", answer)
    see(1, 2, 3, 4, 5)
    while one.step() is not None:
        pass
    assert odd.numbers() == [1, 2, 4, 5]
    assert one.refused == 1
    assert "will not have report 3" in said[0]


def test_what_is_too_much_at_once_goes_in_smaller_pieces(odd, sender, monkeypatch):
    one, said, see = sender(odd.url)

    def answer(path, body, headers, usually=odd.answer):
        if path.endswith("/telemetry") and len(body["reports"]) > 3:
            return 413, {}, {"error": {"message": "too large", "fields": []}}
        return usually(path, body, headers)

    monkeypatch.setattr(odd, "answer", answer)
    see(*range(1, 11))
    for _ in range(50):
        if one.step() is None:
            break
    assert odd.numbers() == list(range(1, 11))
    assert said == []


def test_a_token_that_was_revoked_is_read_anew(odd, sender):
    tokens = iter(["ws_1_old", "ws_2_new"])
    one, said, see = sender(odd.url, token=lambda: next(tokens))
    see(1)
    revoked = (401, {}, {"error": {"message": "this token was revoked at 12:00", "fields": []}})
    odd.answers = [revoked, revoked]
    assert 30 <= one.step() <= 36
    assert 30 <= one.step() <= 36
    assert one.step() is None
    assert [headers["Authorization"] for headers in odd.headers][-1] == "Bearer ws_2_new"
    assert "this token was revoked at 12:00" in said[0]
    assert len(said) == 2


def test_an_older_service_that_knows_less_is_done_with(odd, sender):
    one, said, see = sender(odd.url)
    see(1, 2)
    odd.answers = [(404, {}, {"error": {"message": "there is no such thing", "fields": []}})]  # to the greeting
    odd.says = {"server_time_s": None, "duplicates": None}
    assert one.step() is None
    assert odd.numbers() == [1, 2]
    assert one.clock.now_s() is None
    assert said == []


def test_a_new_schedule_is_fetched_once_and_outlives_the_agent(odd, sender, tmp_path):
    one, _, see = sender(odd.url)
    odd.schedule = schedule(now_s=odd.now_s(), serial=4)
    see(1)
    one.step()
    see(2)
    one.step()
    assert [path for _, path, _ in odd.asked].count("/api/v1/clients/desk-3/schedule") == 1
    assert [came.serial for came in one.came] == [4]
    assert ScheduleFolder(tmp_path / "state/schedule.json", "desk-3").serial == 4
    assert ScheduleFolder(tmp_path / "state/schedule.json", "another").serial is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"serial": 3}, "older than 4, which is kept"),
        ({"serial": 5, "client": "desk-4"}, "for 'desk-4' was sent to desk-3"),
        ({"serial": 5, "version": 2}, "this is version 2"),
        ({"serial": 5, "works": None}, "works: expected a list"),
        ({"serial": 5, "surprise": 1}, "surprise: not known here"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_told_and_the_last_one_stays(odd, sender, changed, says):
    one, said, see = sender(odd.url)
    odd.schedule = schedule(now_s=odd.now_s(), serial=4)
    see(1)
    one.step()
    odd.schedule = odd.schedule | changed
    for number in (2, 3):
        see(number)
        one.step()
    assert one.schedules.serial == 4
    assert len(said) == 1
    assert says in said[0]


def test_an_older_schedule_behind_a_newer_serial_is_refused(odd, sender):
    one, said, see = sender(odd.url)
    odd.schedule = schedule(now_s=odd.now_s(), serial=4)
    see(1)
    one.step()
    odd.schedule["serial"] = 3
    odd.says = {"serial": 9}
    see(2)
    one.step()
    assert one.schedules.serial == 4
    assert "work schedule 3 is not later than 4" in said[0]


def test_a_service_that_counts_anew_is_followed_once_the_last_schedule_is_over(odd, agent, machine):
    one, said, shift, _ = agent(odd.url)
    odd.schedule = schedule(300.0, now_s=odd.now_s(), serial=40, holds_s=60.0)
    told_and_ticked(one)
    odd.schedule = schedule(400.0, now_s=odd.now_s() + 1, serial=1, holds_s=3600.0)
    assert told_and_ticked(one).serial == 40
    assert "older than 40, which is kept" in said[-1]
    shift[0] = odd.skew_s = 70.0
    assert told_and_ticked(one).serial == 1
    assert machine.setting(0).power_limit_w == 400.0


def test_a_schedule_on_disk_that_was_damaged_is_fetched_anew(odd, sender, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state/schedule.json").write_text("{")
    one, said, see = sender(odd.url)
    odd.schedule = schedule(now_s=odd.now_s(), serial=4)
    see(1)
    one.step()
    assert one.schedules.serial == 4
    assert "cannot be read, and is fetched anew" in said[0]


# On a machine


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Two simulated H200: the first draws 400 W at a load of a half, the second idles at 100 W."""
    (tmp_path / "sys").mkdir()
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path / "sys"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("WATTSMITH_TOKEN", "ws_1_x")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = SimulatedNvml.create(tmp_path / "nvml", gpus=2)
    made.play(0, 0.5)
    try:
        for name, value in made.environment().items():
            monkeypatch.setenv(name, value)
    except ExtraNeeded as no_compiler:
        pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
    made.load_here()
    return made


@pytest.fixture
def agent(tmp_path, machine):  # noqa: ARG001 - it looks at it
    """Makes an agent of desk-3 whose clocks are SHIFTED by what is in two lists."""
    made = []

    def make(url, **more):
        said, shift, wall = [], [0.0], [0.0]
        options = AgentOptions(name="desk-3", url=url, token=lambda: "ws_1_x", state=tmp_path / "agent", **more)
        one = Agent(
            options,
            tell=said.append,
            clock_s=lambda: since_boot_s() + shift[0],
            wall_s=lambda: time.time() + wall[0],
        )
        made.append(one)
        return one, said, shift, wall

    yield make
    for one in made:
        one.close()


def told_and_ticked(one):
    """A report is made and sent, then what came of it is done; the second report."""
    one.tick()
    one.sender.step()
    return one.tick()


def test_reports_tell_power_energy_and_how_a_device_is(odd, agent, machine, tmp_path):
    progress = tmp_path / "steps"
    progress.write_text("1\n2\n3\n")
    machine.use_memory(0, 5 * 2**30)
    one, _, _, _ = agent(odd.url, progress=progress)
    one.tick()
    time.sleep(0.3)
    progress.write_text("1\n2\n3\n4\n")
    seen = one.tick()
    time.sleep(0.3)
    later = one.tick()
    gpu = seen.domains["gpu:0"]
    assert gpu.power_w == pytest.approx(400, rel=0.02)
    assert seen.domains["gpu:1"].power_w == pytest.approx(100, rel=0.02)
    grown_j = later.domains["gpu:0"].energy_j - gpu.energy_j
    assert grown_j == pytest.approx(400 * 0.3, rel=0.4)
    assert (gpu.power_limit_w, gpu.memory_used_bytes) == (700.0, 5 * 2**30)
    assert gpu.clock_hz is not None
    assert seen.steps == 4.0
    assert [seen.number, later.number] == [2, 3]
    one.sender.step()
    about = odd.asked[0][2]
    assert [each["domain"] for each in about["devices"]] == ["gpu:0", "gpu:1"]
    assert about["simulated"]
    assert "gpu:0/power_limit" in about["knobs"]


def test_a_machine_without_meters_reports_that_it_is_there(odd, tmp_path, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    options = AgentOptions(name="bare", url=odd.url, token=lambda: "ws_1_x", state=tmp_path / "agent")
    one = Agent(options)
    try:
        assert one.tick().domains == {}
        assert one.sender.step() is None
        assert odd.numbers() == [1]
    finally:
        one.close()


@pytest.mark.parametrize("skew_s", [-HOUR_S, 0.0, HOUR_S])
def test_a_schedule_holds_by_the_services_clock_and_then_the_safe_default(agent, machine, skew_s):
    odd = OddServer()
    odd.skew_s = skew_s
    with odd.running():
        one, _, shift, _ = agent(odd.url)
        odd.schedule = schedule(300.0, now_s=odd.now_s(), holds_s=60.0)
        followed = told_and_ticked(one)
    assert (followed.serial, followed.in_force["gpu:0"].power_limit_w) == (1, 300.0)
    assert machine.setting(0).power_limit_w == 300.0
    shift[0] = 50.0  # the service is away, and the schedule holds
    assert one.tick().serial == 1
    assert machine.setting(0).power_limit_w == 300.0
    shift[0] = 70.0
    over = one.tick()
    assert (over.serial, over.in_force["gpu:0"].power_limit_w) == (None, 600.0)
    assert machine.setting(0).power_limit_w == 600.0
    one.close()
    assert machine.setting(0).power_limit_w == 700.0


def test_a_local_clock_that_is_set_changes_nothing_but_the_time_in_reports(odd, agent, machine):
    one, _, _, wall = agent(odd.url)
    odd.schedule = schedule(300.0, now_s=odd.now_s(), holds_s=60.0)
    before = told_and_ticked(one)
    for jump_s in (HOUR_S, -HOUR_S):
        wall[0] = jump_s
        after = one.tick()
        assert after.time_s == pytest.approx(before.time_s + jump_s, abs=30)
        assert (after.serial, machine.setting(0).power_limit_w) == (1, 300.0)


def test_a_later_schedule_takes_over(odd, agent, machine):
    one, _, _, _ = agent(odd.url)
    odd.schedule = schedule(300.0, now_s=odd.now_s())
    told_and_ticked(one)
    odd.schedule = schedule(400.0, now_s=odd.now_s(), serial=2)
    assert told_and_ticked(one).serial == 2
    assert machine.setting(0).power_limit_w == 400.0


def test_an_agent_that_starts_anew_while_the_service_is_away_goes_on_with_its_schedule(agent, machine):
    odd = OddServer()
    with odd.running():
        one, _, _, _ = agent(odd.url)
        odd.schedule = schedule(300.0, now_s=odd.now_s())
        told_and_ticked(one)
        one.close()
    assert machine.setting(0).power_limit_w == 700.0
    again, _, _, _ = agent(odd.url)
    report = again.tick()
    assert (report.serial, report.number) == (1, 1)
    assert report.boot != one.boot
    assert machine.setting(0).power_limit_w == 300.0


def test_what_it_may_not_set_is_reported_and_stops_nothing(odd, agent, machine):
    machine.act_as_root(False)
    one, said, _, _ = agent(odd.url)
    odd.schedule = schedule(300.0, now_s=odd.now_s())
    report = told_and_ticked(one)
    assert report.in_force == {}
    assert report.serial == 1
    assert report.refused[0].startswith("gpu:0/power_limit: ")
    assert report.domains["gpu:0"].power_w is not None
    one.tick()
    assert len([each for each in said if each.startswith("gpu:0/power_limit")]) == 1


def test_it_runs_and_ends_with_its_last_report_sent_and_settings_given_back(odd, agent, machine):
    one, _, _, _ = agent(odd.url, every_s=0.1)
    odd.schedule = schedule(300.0, now_s=odd.now_s())
    stop = threading.Event()
    running = threading.Thread(target=one.run, args=(stop,))
    running.start()
    deadline_s = time.monotonic() + 20
    while len(odd.reports) < 10 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert machine.setting(0).power_limit_w == 300.0
    stop.set()
    running.join(20)
    assert machine.setting(0).power_limit_w == 700.0
    sent = odd.numbers()
    assert sent == list(range(1, one._number + 1))
    assert list(odd.reports.values())[-1]["in_force"] == {}


# The command


def start(odd, tmp_path):
    return subprocess.Popen(
        [WATTSMITH, "agent", "--server", odd.url, "--name", "desk-3", "--every", "0.1s", "--state", tmp_path / "agent"],
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


def wait_for(what, timeout_s=30.0):
    deadline_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_kill_9_leaves_no_gap_and_no_setting(machine, tmp_path):
    odd = OddServer()
    with odd.running():
        odd.schedule = schedule(300.0, now_s=odd.now_s())
        first = start(odd, tmp_path)
        try:
            wait_for(lambda: len(odd.reports) >= 3 and machine.setting(0).power_limit_w == 300.0)
        except AssertionError:
            first.kill()
            raise
    seen = len(odd.reports)
    time.sleep(0.5)  # reports that only the disk has
    first.kill()
    first.communicate()
    (segment,) = (tmp_path / "agent/reports").glob("*.jsonl")
    last = json.loads(segment.read_text().rpartition("\n")[0].splitlines()[-1])["number"]
    assert last > seen
    wait_for(lambda: machine.setting(0).power_limit_w == 700.0)  # the watchdog has put it back
    with odd.running(odd.port):
        again = start(odd, tmp_path)
        try:
            wait_for(lambda: len({boot for boot, _ in odd.reports}) == 2)
            again.send_signal(signal.SIGTERM)
            _, err = again.communicate(timeout=20)
        finally:
            again.kill()
            again.communicate()
    assert again.returncode == 0, err
    assert "desk-3 reports to" in err
    boots = list(dict.fromkeys(boot for boot, _ in odd.reports))
    for boot in boots:
        numbers = odd.numbers(boot)
        assert numbers == list(range(1, len(numbers) + 1))
    assert odd.numbers(boots[0])[-1] == last
    assert machine.setting(0).power_limit_w == 700.0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--every", "0.01s"), "--every must be from 0.1 s"),
        (("--every", "1"), "has no unit"),
        (("--name", "a b"), "the name of a client"),
        (("--server", "ftp://x"), "is no address of a service"),
        (("--meters", "magic"), "there is no meter 'magic'"),
    ],
)
def test_what_it_cannot_do_is_told_at_the_door(options, says, tmp_path, monkeypatch, capsys):
    import wattsmith.cli

    monkeypatch.setenv("WATTSMITH_TOKEN", "ws_1_x")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["wattsmith", "agent", *options])
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(SystemExit) as left:
        wattsmith.cli.main()
    for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
        signal.signal(number, handler)
    assert left.value.code == 2
    assert says in capsys.readouterr().err


def test_values_of_knobs_are_settings_of_devices():
    values = {"gpu:0/power_limit": 300.0, "gpu:0/clock": (1e9, 1e9), "cpu:0/governor": "powersave", "gpu:1/clock": None}
    assert settings_of(values) == {"gpu:0": Setting(power_limit_w=300.0, clock_hz=1e9)}


def test_a_host_is_a_name():
    assert usual_name("desk 3.local") == "desk-3.local"
    assert usual_name("---") == "client"
    with pytest.raises(BadInput):
        AgentOptions(name="../x", url="", token=str, state=Path())


def test_a_report_survives_json():
    plain = report("b", 1)
    assert json.loads(json.dumps(plain)) == plain


# A service that is killed


def served(tmp_path, port):
    """`wattsmith serve` at PORT, and the line that it says when it is ready."""
    command = [WATTSMITH, "serve", "--home", tmp_path / "service", "--port", str(port), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = process.stdout.readline()
    assert line, process.wait()
    return process, json.loads(line)


def test_kill_9_of_the_service_loses_no_report_and_leaves_the_schedule_in_force(machine, tmp_path):
    pytest.importorskip("fastapi", reason="NOT CHECKED with the real service: fastapi is not installed")
    process, said = served(tmp_path, 0)
    admin = Server(said["url"], Path(said["admin_token"]).read_text().strip())
    options = AgentOptions(
        name="desk-3", url=said["url"], token=lambda: admin.token, state=tmp_path / "agent", every_s=0.1
    )
    one, stop = Agent(options), threading.Event()
    running = threading.Thread(target=one.run, args=(stop,))
    try:
        given = schedule(300.0, now_s=time.time(), serial=1, holds_s=600.0)
        running.start()
        wait_for(lambda: one.sender.accepted > 3)
        admin.ask("PUT", "/clients/desk-3/schedule", given)
        wait_for(lambda: machine.setting(0).power_limit_w == 300.0)
        process.kill()
        process.communicate()
        accepted = one.sender.accepted
        time.sleep(0.5)
        assert machine.setting(0).power_limit_w == 300.0
        process, _ = served(tmp_path, int(said["url"].rpartition(":")[2]))
        wait_for(lambda: one.sender.accepted > accepted + 5)
        stop.set()
        running.join(20)
        kept = admin.ask("GET", "/clients/desk-3/telemetry", query={"limit": 10_000}).body["reports"]
        numbers = [each["report"]["number"] for each in kept if each["report"]["boot"] == one.boot]
        assert numbers == list(range(1, one._number + 1))
        assert machine.setting(0).power_limit_w == 700.0
    finally:
        stop.set()
        process.kill()
        process.communicate()
        admin.close()
        one.close()
