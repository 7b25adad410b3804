"""Tokens are looked up once and then known; a revoked one is refused at once, or within a second."""

import threading

import pytest

from wattsmith.flows.service_known_tokens import KnownTokens
from wattsmith.flows.service_tokens import Tokens
from wattsmith.store.opening import open_service_store
from wattsmith.terms.errors import NotRead
from wattsmith.terms.service import Role


class Counting:
    """A store that counts what it is asked, and can be away."""

    def __init__(self, store):
        self._store = store
        self.asked = []
        self.away = False
        self.meanwhile = lambda: None

    def __getattr__(self, name):
        def ask(*words):
            self.asked.append(name)
            if self.away:
                raise NotRead("it is away")
            found = getattr(self._store, name)(*words)
            self.meanwhile()
            return found

        return ask


class At:
    """A clock that stands."""

    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def at():
    return At()


@pytest.fixture
def store(tmp_path):
    with open_service_store(tmp_path / "service.sqlite") as kept:
        yield Counting(kept)


@pytest.fixture
def tokens(store):
    return Tokens(store=store)


@pytest.fixture
def known(tokens, at):
    return KnownTokens(tokens, at)


@pytest.fixture
def kim(tokens, store):
    token, text = tokens.add_token("kim", Role.READ, "tests")
    store.asked.clear()
    return token, text


def test_the_database_is_asked_once_a_second_for_all(known, kim, store, at):
    assert [known.whoami(kim[1]) for _ in range(50)] == 50 * [kim[0]]
    assert store.asked == ["token"]
    assert known.at_once(kim[1]) == kim[0]
    at.now_s += 1
    assert known.at_once(kim[1]) is None
    assert [known.whoami(kim[1]) for _ in range(50)] == 50 * [kim[0]]
    assert store.asked == ["token", "tokens"]


def test_what_is_revoked_here_is_refused_at_once(known, kim):
    known.whoami(kim[1])
    known.revoke(kim[0].id, "tests")
    assert known.at_once(kim[1]) is None
    assert known.whoami(kim[1]).revoked_s is not None


def test_what_is_revoked_elsewhere_is_refused_within_a_second(known, kim, tokens, at):
    known.whoami(kim[1])
    tokens.revoke_token(kim[0].id, "another process")
    at.now_s += 1
    assert known.at_once(kim[1]) is None
    assert known.whoami(kim[1]).revoked_s is not None
    assert known.at_once(kim[1]) is None


def test_what_is_revoked_while_it_is_looked_for_is_not_remembered(known, kim, store):
    def revoke():
        store.meanwhile = lambda: None
        known.revoke(kim[0].id, "tests")

    store.meanwhile = revoke
    known.whoami(kim[1])
    assert known.at_once(kim[1]) is None
    assert known.whoami(kim[1]).revoked_s is not None


def test_strangers_are_not_remembered(known, kim):
    for text in ("", "ws_", kim[1][:-1], kim[1] + "x", "ws_\ud800_x", "ws_0_0"):
        assert known.whoami(text) is None
        assert known.at_once(text) is None


def test_while_the_database_is_away_it_is_asked_by_one_and_the_rest_are_told(known, kim, store, at):
    known.whoami(kim[1])
    at.now_s += 1
    store.away = True
    store.asked.clear()
    told = []

    def ask():
        try:
            known.whoami(kim[1])
        except NotRead as away:
            told.append(str(away))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(told), store.asked) == (20, ["tokens"])
    store.away = False
    at.now_s += 1
    assert known.whoami(kim[1]) == kim[0]
