"""What cannot work is refused with one clear message, before the command runs."""

import os
import subprocess
import sys

import pytest
from tests.cli.running import wattsmith


def refused(*arguments, environment=None):
    """The one message of a command line that must be refused."""
    done = wattsmith(*arguments, environment=environment)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("no-such-command", 127, "was not found"),
        ("./no-such-file", 127, "there is no file"),
        ("/", 126, "it is a folder"),
        (__file__, 126, "Permission denied"),
    ],
)
def test_a_command_that_cannot_run_exits_as_in_a_shell(command, code, said, tmp_path):
    timeline = tmp_path / "t.csv"
    done = wattsmith("measure", "--timeline", timeline, "--", command)
    assert done.returncode == code
    assert done.stderr.startswith("wattsmith: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not timeline.exists()


@pytest.mark.parametrize(("content", "said"), [("#!/no/such\n", "interpreter"), ("nonsense", "Exec format error")])
def test_a_file_that_is_no_program(content, said, tmp_path):
    program = tmp_path / "program"
    program.write_text(content)
    program.chmod(0o755)
    done = wattsmith("measure", "--timeline", tmp_path / "t.parquet", "--", program)
    assert done.returncode == 126
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["program"]


@pytest.mark.parametrize("hz", ["0", "-1", "nan", "inf", "1e9"])
def test_an_absurd_rate(hz):
    assert "times a second" in refused("measure", "--hz", hz, "--", "true")


def test_a_rate_that_is_no_number():
    assert "--hz" in refused("measure", "--hz", "often", "--", "true")


@pytest.mark.parametrize("meters", ["nonsense", "", ",", "gpu:3", "redfish", "modelled", "cpu:x"])
def test_a_meter_that_does_not_exist(meters):
    assert "meter" in refused("measure", "--meters", meters, "--", "true")


@pytest.mark.parametrize("model", ["10-65", "65W-10W", "W-W", "10W", "-5W-10W", "0W-0W"])
def test_a_model_that_makes_no_sense(model):
    assert refused("measure", "--meters", f"modelled:{model}", "--", "true").startswith("wattsmith: ")


def test_a_meter_that_is_not_here(no_meters, tmp_path):
    said = refused("measure", "--meters", "cpu", "--timeline", tmp_path / "t.csv", "--", "true", environment=no_meters)
    assert "no RAPL package" in said
    assert not (tmp_path / "t.csv").exists()


@pytest.mark.parametrize("port", ["0", "-1", "65536"])
def test_a_port_that_does_not_exist(port):
    assert "a port lies between" in refused("measure", "--prometheus", port, "--", "true")


def test_a_port_that_is_taken(no_meters):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("measure", "--prometheus", port, "--", "true", environment=no_meters)
    assert f"cannot serve metrics on port {port}" in said


def test_nothing_to_measure():
    assert "give one of" in refused("measure")
    assert "give one of" in refused("measure", "--", environment={})


def test_two_things_to_measure():
    assert "several" in refused("measure", "--pid", os.getpid(), "--", "true")
    assert "several" in refused("measure", "--replay", "x.csv", "--", "true")


@pytest.mark.parametrize("pid", ["0", "-1", str(2**22 + 1), str(2**70)])
def test_a_process_that_does_not_exist(pid):
    assert f"there is no process {pid}" in refused("measure", "--pid", pid)


def test_a_process_that_has_ended():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert "there is no process" in refused("measure", "--pid", ended.pid)


def test_json_that_cannot_be_written(tmp_path):
    marker = tmp_path / "ran"
    said = refused("measure", "--json", tmp_path / "no" / "such.json", "--", "touch", marker)
    assert "cannot write JSON" in said
    assert not marker.exists()
