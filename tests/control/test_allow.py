"""The allow-list: what it does not say is refused."""

import os

import pytest

from wattsmith.control.allow import AllowList, Peer, Rule, read_allow_list
from wattsmith.terms.control import KnobCard, NotPermitted
from wattsmith.terms.errors import BadInput

ALICE = Peer(pid=1, uid=1001, gids=frozenset({100, 200}))
BOB = Peer(pid=2, uid=1002, gids=frozenset({100}))


def card(name, unit="W", **more):
    return KnobCard(name=name, device=name.partition("/")[0], identity="GPU-1", title="a GPU", unit=unit, **more)


LIMIT, CLOCK = card("gpu:0/power_limit"), card("gpu:0/clock", "Hz", pair=True, lockable=True)
GOVERNOR = card("cpu:0/governor", "", levels=("performance", "powersave"))


def read(tmp_path, text):
    path = tmp_path / "allow.toml"
    path.write_text(text)
    path.chmod(0o600)
    return read_allow_list(path)


@pytest.fixture
def allow(tmp_path):
    return read(
        tmp_path,
        """
        [[allow]]
        users = [1001]
        knobs = ["gpu:*/power_limit"]
        least = "300W"
        most = "600W"
        longest = "10min"

        [[allow]]
        groups = [200]
        knobs = ["gpu:0/clock", "cpu:*/governor"]
        words = ["powersave"]
        """,
    )


@pytest.mark.parametrize("value", [300.0, 450.0, 600.0])
def test_what_is_allowed_passes(allow, value):
    allow.check_set(ALICE, LIMIT, value)


@pytest.mark.parametrize("value", [299.0, 601.0, float("nan")])
def test_what_lies_outside_is_refused_with_what_is_allowed(allow, value):
    with pytest.raises(NotPermitted, match="allowed is at least 300 W and at most 600 W"):
        allow.check_set(ALICE, LIMIT, value)


def test_another_user_is_refused_by_name(allow):
    with pytest.raises(NotPermitted, match=r"uid 1002.*may not set gpu:0/power_limit: no rule"):
        allow.check_set(BOB, LIMIT, 400.0)


def test_root_is_nobody_special(allow):
    with pytest.raises(NotPermitted):
        allow.check_set(Peer(pid=1, uid=0, gids=frozenset({0})), LIMIT, 400.0)


def test_a_group_is_as_good_as_a_user(allow):
    allow.check_set(ALICE, CLOCK, (345e6, 1e9))
    allow.check_set(ALICE, CLOCK, None)
    with pytest.raises(NotPermitted):
        allow.check_set(BOB, CLOCK, (345e6, 1e9))


def test_words_are_allowed_one_by_one(allow):
    allow.check_set(ALICE, GOVERNOR, "powersave")
    with pytest.raises(NotPermitted, match="allowed is powersave"):
        allow.check_set(ALICE, GOVERNOR, "performance")


def test_bounds_hold_for_both_ends_and_forbid_unlocking(tmp_path):
    allow = read(tmp_path, '[[allow]]\nusers = [1001]\nknobs = ["*"]\nmost = "1.2GHz"\n')
    allow.check_set(ALICE, CLOCK, (345e6, 1.2e9))
    for value in ((345e6, 1.3e9), None):
        with pytest.raises(NotPermitted, match=r"at most 1.2 GHz"):
            allow.check_set(ALICE, CLOCK, value)
    with pytest.raises(NotPermitted, match="nothing"):
        allow.check_set(ALICE, LIMIT, 300.0)  # a bound in hertz says nothing of watts, so it allows none


def test_a_device_is_held_only_by_who_may_set_something_on_it(allow):
    allow.check_hold(ALICE, "gpu:0", [LIMIT], 600.0, shared=False)
    with pytest.raises(NotPermitted, match="may not hold gpu:0"):
        allow.check_hold(BOB, "gpu:0", [LIMIT], 1.0, shared=False)
    with pytest.raises(NotPermitted, match="at most 600 s"):
        allow.check_hold(ALICE, "gpu:0", [LIMIT], 601.0, shared=False)
    with pytest.raises(NotPermitted, match="others use it"):
        allow.check_hold(ALICE, "gpu:0", [LIMIT], 1.0, shared=True)


def test_sharing_is_allowed_where_a_rule_says_so():
    rule = Rule(uids=frozenset({1001}), gids=frozenset(), knobs=("*",), shared=True)
    AllowList([rule]).check_hold(ALICE, "gpu:0", [LIMIT], 1.0, shared=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[allow", "not TOML"),
        ("deny = 1", "nothing else"),
        ("allow = [1]", "not a table"),
        ('[[allow]]\nusers = [1]\nknobs = ["*"]\nmots = "1W"', "no mots"),
        ("[[allow]]\nusers = [1]", "must say who"),
        ('[[allow]]\nknobs = ["*"]', "must say who"),
        ('[[allow]]\nusers = ["no-such-user-here"]\nknobs = ["*"]', "no user 'no-such-user-here'"),
        ('[[allow]]\ngroups = ["no-such-group-here"]\nknobs = ["*"]', "no group"),
        ('[[allow]]\nusers = 1\nknobs = ["*"]', "users is a list"),
        ('[[allow]]\nusers = [1]\nknobs = ["*"]\nmost = 300', "no unit"),
        ('[[allow]]\nusers = [1]\nknobs = ["*"]\nlongest = "3W"', "unit of power"),
        ('[[allow]]\nusers = [1]\nknobs = ["*"]\nshared = "yes"', "true or false"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(tmp_path, text, why):
    with pytest.raises(BadInput, match=why):
        read(tmp_path, text)


def test_a_list_that_others_may_write_is_not_trusted(tmp_path):
    path = tmp_path / "allow.toml"
    path.write_text("allow = []")
    path.chmod(0o666)
    with pytest.raises(BadInput, match="chmod go-w"):
        read_allow_list(path)


def test_a_list_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        read_allow_list(tmp_path / "nothing")


def test_names_are_looked_up(tmp_path):
    allow = read(tmp_path, '[[allow]]\nusers = ["root"]\nknobs = ["gpu:0/*"]\n')
    allow.check_set(Peer(pid=os.getpid(), uid=0, gids=frozenset()), LIMIT, 300.0)
