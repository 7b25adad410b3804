"""The three places where runs are kept pass one suite."""

import pytest
from tests.contracts.run_store import RunStoreContract


class TestSqlite(RunStoreContract):
    @pytest.fixture
    def place(self, tmp_path):
        return tmp_path / "record.sqlite"


class TestLines(RunStoreContract):
    @pytest.fixture
    def place(self, tmp_path):
        return tmp_path / "record.jsonl"


class TestPostgres(RunStoreContract):
    @pytest.fixture
    def place(self, postgres_place):
        return postgres_place
