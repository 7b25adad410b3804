"""The two places where a service keeps things pass one suite."""

import shutil

import pytest
import sqlalchemy
from tests.contracts.service_store import ServiceStoreContract

from wattsmith.store import service_tables
from wattsmith.store.engine import postgres_engine
from wattsmith.store.opening import open_service_store


@pytest.fixture(scope="module")
def empty_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("empty") / "record.sqlite"
    open_service_store(path).close()
    return path


@pytest.fixture(scope="module")
def one_database(make_database):
    """A database for all tests, and a way to empty it: to make one for each takes half a second."""
    place = make_database()
    open_service_store(place).close()
    engine = postgres_engine(sqlalchemy.make_url(place))

    def emptied() -> str:
        with engine.begin() as connection:
            for table in reversed(service_tables.metadata.sorted_tables):
                connection.execute(table.delete())
            connection.execute(sqlalchemy.text("ALTER SEQUENCE jobs_number_seq RESTART"))
        return place

    yield emptied
    engine.dispose()


class TestSqlite(ServiceStoreContract):
    @pytest.fixture
    def place(self, empty_file, tmp_path):
        return shutil.copy(empty_file, tmp_path / "record.sqlite")


class TestPostgres(ServiceStoreContract):
    @pytest.fixture
    def place(self, one_database):
        return one_database()
