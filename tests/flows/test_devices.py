"""Devices by name: from the user's own record, from one that is shipped, or by data sheet; and what is kept of them."""

import json
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="ESTIMATES ARE NOT TESTED: numpy is not installed")
pytest.importorskip("scipy", reason="ESTIMATES ARE NOT TESTED: scipy is not installed")

from tests.flows.knowing import few_runs, h200, on_device, without_calls, written

from wattsmith.flows.devices import fingerprint, kept_at, known_device, known_names, record_named
from wattsmith.flows.records import runs_of
from wattsmith.store.opening import default_path
from wattsmith.store.shipped import RECORDS
from wattsmith.terms.errors import BadInput
from wattsmith.terms.estimate import Basis
from wattsmith.terms.facts import as_plain

GIB = 2**30


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Somebody who has neither a record nor a cache yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def refused(*arguments):
    with pytest.raises(BadInput) as told:
        known_device(*arguments)
    return str(told.value)


class TestWhereADeviceIsKnownFrom:
    def test_the_shipped_record_knows_the_h200(self):
        assert (h200().name, h200().record, h200().basis) == ("NVIDIA H200", "h200", Basis.OPERATORS)
        assert 139 * GIB < h200().capacity_bytes < 141 * GIB

    def test_what_takes_long_to_find_of_it_is_shipped_beside_it(self):
        kept = kept_at(h200().runs, "h200")
        assert kept.parent == RECORDS, "models or runs changed: run scripts/learn_h200"

    def test_no_other_file_is_shipped_beside_it(self):
        assert [path.name for path in RECORDS.glob(f"h200.{'?' * 16}.json")] == [kept_at(h200().runs, "h200").name]

    @pytest.mark.parametrize("name", ["NVIDIA H200", "nvidia-h200"])
    def test_it_may_be_spelled_in_several_ways(self, home, name):
        record = written(home / "few.jsonl", few_runs())
        assert known_device(name, record).name == "NVIDIA H200"

    def test_a_user_s_own_record_comes_first_where_none_is_shipped(self):
        written(default_path(), on_device(few_runs(), name="NVIDIA L4"))
        found = known_device("l4")
        assert (found.record, len(found.runs)) == ("your own record", len(few_runs()))

    def test_a_short_record_of_a_user_s_own_does_not_replace_the_one_that_is_shipped(self):
        written(default_path(), few_runs())
        assert known_device("h200").record == "h200"

    @pytest.mark.parametrize("count", [0, 4])
    def test_a_record_of_a_user_s_own_that_knows_too_little_is_passed_over(self, count):
        written(default_path(), few_runs()[:count])
        assert known_device("h200").record == "h200"

    def test_so_is_one_asked_for_by_name(self, home):
        assert known_device("h200", written(home / "empty.sqlite", [])).record == "h200"

    def test_a_record_that_is_not_there_is_an_error(self, home):
        assert f"there is no record at {home}/none.sqlite; `wattsmith record run` takes one" in refused(
            "h200", str(home / "none.sqlite")
        )

    def test_a_record_that_is_none_is_named(self):
        default_path().parent.mkdir(parents=True)
        default_path().write_text("no database")
        assert "record.sqlite" in refused("h200")


class TestByDataSheet:
    def test_a_device_that_nobody_measured_goes_by_the_ratio_of_data_sheets(self):
        found = known_device("a100")
        assert (found.name, found.basis) == ("NVIDIA A100 SXM4 40GB", Basis.SHEET)
        assert found.record == "h200, scaled by data sheets"
        assert found.power_ratio == 400 / 700
        assert found.capacity_bytes == 40 * GIB

    def test_an_unknown_device_lists_the_known_ones(self):
        told = refused("b900")
        assert "no data sheet goes by 'b900'. Did you mean b200? Known devices: " in told
        assert "NVIDIA H200" in told
        assert "Tesla T4" in told
        assert told.endswith("Devices with a record here: NVIDIA H200; `cpu` for this machine's own.")

    @pytest.mark.parametrize("name", ["", ",", "gpu"])
    def test_so_does_no_name_at_all(self, name):
        assert "Known devices: " in refused(name)


class TestByWholeSteps:
    def test_a_record_without_calls_teaches_whole_steps(self, home):
        runs = [run for run in runs_of("h200") if run.workload.kind == "network"][:30]
        found = known_device("h200", written(home / "steps.jsonl", without_calls(runs)))
        assert (found.basis, len(found.runs), found.whole is None) == (Basis.STEPS, 30, False)

    def test_nine_of_them_are_too_few(self, home):
        runs = [run for run in few_runs() if run.workload.kind == "network"][:9]
        assert known_device("h200", written(home / "steps.jsonl", without_calls(runs))).record == "h200"


class TestWithoutADataSheet:
    def test_a_gpu_is_known_by_its_record_alone(self, home):
        record = written(home / "own.jsonl", on_device(few_runs(), name="NVIDIA Voyager 9000"))
        found = known_device("voyager 9000", record)
        assert (found.name, found.sheet, found.basis) == ("NVIDIA Voyager 9000", None, Basis.OPERATORS)
        assert known_names(record) == ["NVIDIA Voyager 9000"]

    def test_a_name_that_fits_two_devices_is_none(self, home):
        runs = few_runs()
        both = on_device(runs[:8], name="Voyager One") + on_device(runs[8:], name="Voyager Two")
        record = written(home / "own.jsonl", both)
        assert "Devices with a record here: Voyager One, Voyager Two;" in refused("voyager", record)


class TestCpu:
    def test_without_a_record_it_says_how_to_take_one(self):
        assert refused("cpu").endswith("Take one first: wattsmith record run --preset smoke --device cpu")

    def test_a_record_of_a_gpu_does_not_tell_of_it(self):
        assert "no record tells what this CPU does" in refused("cpu", "h200")

    def test_it_goes_by_the_name_cpu(self, home):
        record = written(home / "cpu.jsonl", on_device(few_runs(), name="A CPU of some make", kind="cpu"))
        found = known_device("cpu", record)
        assert (found.name, found.sheet, found.record) == ("cpu", None, record)
        assert known_names(record) == ["cpu"]


class TestKnownNames:
    def test_the_shipped_record_has_one(self):
        assert known_names() == ["NVIDIA H200"]

    def test_a_device_of_too_few_runs_is_none(self, home):
        assert known_names(written(home / "few.jsonl", few_runs()[:4])) == []

    def test_a_record_that_is_not_there_has_none(self):
        assert known_names("/no/such/record") == []


class TestWhatIsKept:
    @pytest.fixture
    def record(self, home):
        return written(home / "few.jsonl", few_runs())

    def test_what_was_found_out_is_kept_in_the_cache_and_read_again(self, record, home):
        told = []
        first = known_device("h200", record, told.append)
        assert told
        (kept,) = (home / "cache" / "wattsmith").iterdir()
        assert json.loads(kept.read_text()) == as_plain(first.model.known)
        again = known_device("h200", record, lambda what: pytest.fail(f"it is {what} again"))
        assert again.model.known.doubts == first.model.known.doubts

    @pytest.mark.parametrize("text", ["", "[]", '{"reaches": {}}', "\x00"])
    def test_a_kept_file_that_cannot_be_read_is_passed_over_and_made_anew(self, record, home, text):
        found = known_device("h200", record)
        (kept,) = (home / "cache" / "wattsmith").iterdir()
        kept.write_text(text)
        again = known_device("h200", record)
        assert again.model.known.doubts == found.model.known.doubts
        assert json.loads(kept.read_text()) == as_plain(found.model.known)

    def test_a_cache_that_cannot_be_written_only_costs_time(self, record, home, monkeypatch):
        (home / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))  # a file where a folder should be
        assert known_device("h200", record).model.known is not None
        assert (home / "file").read_text() == ""

    def test_other_runs_are_kept_under_another_name(self):
        runs = few_runs()
        assert fingerprint(runs) == fingerprint(runs[::-1])
        assert len({fingerprint(runs), fingerprint(runs[1:]), fingerprint(without_calls(runs))}) == 3

    def test_nothing_is_looked_for_beside_a_record_that_is_not_shipped(self, home):
        assert kept_at(few_runs(), str(home / "few.jsonl")).parent == Path(home / "cache" / "wattsmith")


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (None, "your own record"),
        ("h200", "h200"),
        ("/data/own.sqlite", "/data/own.sqlite"),
        ("postgresql://team@host/record", "postgresql://team@host/record"),
        ("postgresql://team:secret@host:5432/record", "postgresql://team:***@host:5432/record"),
    ],
)
def test_a_record_is_shown_without_its_password(place, shown):
    assert record_named(place) == shown
