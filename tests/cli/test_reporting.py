"""`wattsmith report check` as a user runs it."""

import json
import re

import pytest
from tests.cli.running import wattsmith
from tests.report.session_folder import write_session
from tests.report.test_training_and_tiny import write_new


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    return write_session(tmp_path_factory.mktemp("one") / "offline" / "performance")


def test_a_rejected_result_exits_with_1_and_says_why(session):
    done = wattsmith("report", "check", session)
    assert done.returncode == 1
    assert "200 W (Offline: mean W)" in done.stdout
    assert "verdict   rejected by the strict checks" in done.stdout
    assert re.search(r"FAILED +official +Check client sources checksum", done.stdout)


def test_an_accepted_result_exits_with_0(tmp_path):
    (tmp_path / "energy").mkdir()
    write_new(tmp_path / "energy")
    done = wattsmith("report", "check", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "accepted" in done.stdout


def test_json_holds_every_check_and_nothing_else_is_printed(session):
    done = wattsmith("report", "check", session, "--json", "--round", "v4.0")
    told = json.loads(done.stdout)
    assert (done.returncode, told["results"][0]["round"], len(told["results"][0]["checks"])) == (1, "v4.0", 31)


def test_the_official_checks_can_be_had_alone(session):
    done = wattsmith("report", "check", session, "--official")
    assert "by the official checks" in done.stdout
    assert "Coverage of the window" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(("nowhere",), "is no folder"), ((".", "--round", "v7.0"), "no profile of a round 'v7.0'")],
)
def test_what_cannot_be_checked_exits_with_2(arguments, why):
    done = wattsmith("report", "check", *arguments)
    assert (done.returncode, why in done.stderr) == (2, True)
