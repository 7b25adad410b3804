"""`wattsmith tune serve`, as typed."""

import json

import pytest
from typer.testing import CliRunner

import wattsmith.cli
from wattsmith.cli.tuning import tune
from wattsmith.terms.errors import BadInput, WattsmithError

pytest.importorskip("torch", reason="SERVING IS NOT TESTED: torch is not installed")
pytest.importorskip("scipy", reason="SERVING IS NOT TESTED: scipy is not installed")
assert wattsmith.cli.app  # `serve` joins its group there

NET = """
from torch import nn

def build():
    print("hello")
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
"""
LOAD = ("--input", "3x4x4", "--rate", "100", "--window", "100ms", "--meters", "modelled:10W-65W", "--budget", "3")


@pytest.fixture(autouse=True)
def net(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path / 'net.py'}:build"


def typed(*arguments):
    done = CliRunner().invoke(tune, ["serve", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_model_is_served_and_tuned(net, tmp_path):
    picture = tmp_path / "trials.svg"
    done = typed(net, *LOAD, "--knob", "batch=1,2,4", "--limit", "latency_p99<=10s", "--plot", picture)
    assert done.exit_code == 0
    assert "least of the settings that keep all limits" in done.stdout.replace("\n", " ")
    assert "hello" not in done.stdout
    assert "<svg" in picture.read_text()


def test_the_same_again_is_answered_from_the_cache(net):
    first = json.loads(typed(net, *LOAD, "--knob", "batch=1,2", "--json").stdout)
    again = typed(net, *LOAD, "--knob", "batch=1,2", "--json")
    assert "trials that were made earlier" in again.stderr
    assert json.loads(again.stdout)["trials"] == first["trials"]
    anew = typed(net, *LOAD, "--knob", "batch=1,2", "--json", "--no-cache")
    assert json.loads(anew.stdout)["trials"] != first["trials"]


def test_a_cache_that_is_damaged_is_set_aside_and_made_anew(net, tmp_path):
    typed(net, *LOAD, "--knob", "batch=1,2")
    (cache,) = (tmp_path / "cache").rglob("trials-*.jsonl")
    cache.write_text("hello\nworld\n")
    again = typed(net, *LOAD, "--knob", "batch=1,2")
    assert again.exit_code == 0
    assert "earlier trials cannot be used, and are made anew" in again.stderr
    assert cache.with_suffix(".damaged").read_text() == "hello\nworld\n"


def test_limits_that_nothing_keeps_exit_with_one_and_tell_the_nearest(net):
    done = typed(net, *LOAD, "--knob", "batch=1,2", "--limit", "latency_p99<=1us")
    assert done.exit_code == 1
    assert "no setting that was tried keeps the limits" in done.stdout.replace("\n", " ")


def test_it_serves_and_tunes_meanwhile(net):
    limit = ("--limit", "latency_p99<=10s")
    done = typed(net, *LOAD, "--rate", "100,200", "--knob", "batch=1,2", "--live", "400ms", *limit, "--json")
    assert [one["rate_hz"] for one in json.loads(done.stdout)] == [100.0, 100.0, 200.0, 200.0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", "100"), "no knob to turn"),
        (("--knob", "batch=1,2"), "how do queries come"),
        (("--knob", "batch=1,2", "--rate", "10", "--clients", "2"), "Give one of"),
        (("--knob", "batch=1,2", "--rate", "fast"), "queries per second"),
        (("--knob", "batch=1,2", "--rate", "1,2"), "for --live"),
        (("--knob", "batch=1,2", "--rate", "100", "--beside", "3"), "for --live"),
        (("--knob", "fan=1,2", "--rate", "100"), "no such knob"),
        (("--knob", "batch=1,2", "--rate", "100", "--device", "cuda:0"), "no GPU here"),
        (("--knob", "batch=1,2", "--rate", "100", "--limit", "power<=1W", "--limit", "power>=2W"), "keep both"),
        (("--knob", "batch=1,2", "--rate", "100", "--window", "4"), "no unit"),
        (
            ("--knob", "batch=1,2", "--rate", "100", "--limit", "accuracy>=0.9", *LOAD[4:]),
            "no metric accuracy; what came is time_s",
        ),
        (("--knob", "batch=1,2", "--rate", "100", "--live", "1s"), "keeps one limit"),
        (("--knob", "batch=1,2", "--rate", "100", "--live", "1s", "--clients", "2"), "--clients is not for --live"),
        (
            ("--knob", "batch=1,2", "--rate", "100", "--live", "1s", "--limit", "latency_p99<=1s", "--window", "0s"),
            "--window must be positive",
        ),
        (("--knob", "gpu:0/power_limit=300W", "--rate", "100", "--meters", "modelled:10W-65W"), "gpu:0"),
    ],
)
def test_what_is_wrong_is_said(net, arguments, said):
    with pytest.raises(WattsmithError, match=said):
        typed(net, "--input", "3x4x4", *arguments)


def test_a_model_that_is_not_there_is_told(net):
    with pytest.raises(BadInput, match=r"net\.py"):
        typed(net.replace("build", "nothing"), *LOAD, "--knob", "batch=1,2")
