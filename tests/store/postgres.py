"""A throw-away PostgreSQL."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@contextmanager
def postgres_for_tests(folder: str) -> Iterator[str]:
    """A server whose files are in FOLDER; the URL of its own database."""
    pytest.importorskip("psycopg", reason="POSTGRESQL IS NOT TESTED: psycopg is not installed")
    command = ["bash", str(ROOT / "scripts" / "postgres"), folder]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        url = server.stdout.readline().strip()
        if not url:
            pytest.skip(f"POSTGRESQL IS NOT TESTED: {server.stderr.read().strip()}")
        try:
            yield url
        finally:
            server.stdin.close()  # which stops it
