"""A PostgreSQL for the length of the tests, and an empty database in it for each test that asks."""

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest
from tests.store.postgres import ROOT, postgres_for_tests


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server's own database. Skips, loudly, where there can be no server."""
    # Not pytest's own folder: the path of a socket may not be long.
    with tempfile.TemporaryDirectory(prefix="pg-") as folder, postgres_for_tests(folder) as url:
        yield url


@pytest.fixture
def postgres_place(make_database) -> str:
    """The URL of an empty database."""
    return make_database()


@pytest.fixture(scope="session")
def make_database(postgres_server) -> Callable[[], str]:
    """Makes an empty database and says its URL."""
    import psycopg

    numbers = itertools.count()

    def make() -> str:
        name = f"record_{next(numbers)}"
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return postgres_server.replace("/postgres?", f"/{name}?")

    return make


@pytest.fixture
def start_writer(start_process):
    """Starts a process that adds COUNT runs of SESSION to the record at URL; it is ended after the test."""

    def start(url: str, session: str, count: int, how: str = "one") -> subprocess.Popen[str]:
        return start_process("tests.store.write_runs", url, session, str(count), how)

    return start


@pytest.fixture
def start_process():
    """Starts a process that runs a module with what is given to it; it is ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(module: str, *given: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", module, *given]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=ROOT, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
