"""A PostgreSQL for the length of the tests, and an empty database in it for each test that asks."""

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server's own database. Skips, loudly, where there can be no server."""
    pytest.importorskip("psycopg", reason="POSTGRESQL IS NOT TESTED: psycopg is not installed")
    # Not pytest's own folder: the path of a socket may not be long.
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        command = ["bash", str(ROOT / "scripts" / "postgres"), folder]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as server:
            url = server.stdout.readline().strip()
            if not url:
                pytest.skip(f"POSTGRESQL IS NOT TESTED: {server.stderr.read().strip()}")
            yield url
            server.stdin.close()  # which stops it


@pytest.fixture
def postgres_place(postgres_server, database_numbers) -> str:
    """The URL of an empty database."""
    import psycopg

    name = f"record_{next(database_numbers)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_server.replace("/postgres?", f"/{name}?")


@pytest.fixture(scope="session")
def database_numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def start_writer():
    """Starts a process that adds COUNT runs of SESSION to the record at URL; it is ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(url: str, session: str, count: int, how: str = "one") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.store.write_runs", url, session, str(count), how]
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
