"""What every store of runs promises, wherever it keeps them: a test class per store inherits this."""

import dataclasses
import random
from itertools import pairwise
from operator import attrgetter

import pytest
from hypothesis import HealthCheck, given, settings
from tests.store.any_runs import any_run
from tests.store.making import CNN, H200, failed_run, run_of

from wattsmith.store.exchange import export_runs, import_runs
from wattsmith.store.filters import Coverage
from wattsmith.store.opening import open_store
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.run import Condition, Provenance, Status
from wattsmith.terms.work import Setting

# One record takes all examples of a law: each has a session of its own.
ONE_RECORD = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
)


class RunStoreContract:
    """Give a fixture `place`: the path or URL of a record that does not exist yet."""

    @pytest.fixture
    def store(self, place):
        with open_store(place) as store:
            yield store

    @ONE_RECORD
    @given(run=any_run())
    def test_what_is_added_comes_back_equal(self, store, run):
        assert store.add(run) is True
        (back,) = store.runs(session=run.provenance.session)
        assert back == run
        assert back.workload.key == run.workload.key

    def test_a_new_store_is_empty(self, store):
        assert list(store.runs()) == []
        assert store.count() == 0
        assert store.coverage() == []
        assert not store.has(CNN, H200, Setting())

    def test_it_remembers_after_it_was_closed(self, place):
        with open_store(place) as store:
            store.add(run_of(1))
        with open_store(place) as store:
            assert list(store.runs()) == [run_of(1)]

    def test_the_same_run_is_added_once(self, store):
        assert [store.add(run_of(1)), store.add(run_of(1))] == [True, False]
        assert store.count() == 1

    def test_a_session_measures_a_workload_at_a_setting_once(self, store):
        store.add(failed_run(1))
        assert store.add(run_of(1)) is False
        assert [run.status for run in store.runs()] == [Status.OUT_OF_MEMORY]

    def test_another_session_setting_device_or_workload_is_another_run(self, store):
        others = [
            run_of(1, session="tuesday"),
            run_of(1, setting=Setting(power_limit_w=250.0)),
            run_of(1, setting=Setting(threads=250)),
            run_of(1, device=dataclasses.replace(H200, name="NVIDIA L4")),
            run_of(1, workload=dataclasses.replace(run_of(1).workload, precision="bf16")),
        ]
        assert [store.add(run) for run in [run_of(1), *others]] == [True] * 6
        assert list(store.runs()) == [run_of(1), *others]

    def test_250_and_250_point_0_watts_are_one_setting(self, store):
        store.add(run_of(1, setting=Setting(power_limit_w=250)))
        assert store.add(run_of(1, setting=Setting(power_limit_w=250.0))) is False

    def test_parameters_of_one_value_and_different_type_are_different(self, store):
        kinds = [dataclasses.replace(CNN, parameters={"n": value}) for value in (1, 1.0, True, "1")]
        for workload in kinds:
            assert store.add(run_of(workload=workload))
        back = [run.workload.parameters["n"] for run in store.runs()]
        assert [(type(value), value) for value in back] == [(int, 1), (float, 1.0), (bool, True), (str, "1")]

    def test_an_unknown_condition_is_not_a_condition_of_which_nothing_is_known(self, store):
        conditions = [None, Condition(), Condition(throttled_by=()), Condition(throttled_by=("heat", "power, cap"))]
        for number, condition in enumerate(conditions):
            store.add(run_of(number, condition=condition))
        assert [run.condition for run in store.runs()] == conditions

    def test_it_knows_what_it_has(self, store):
        run = run_of(1)
        store.add(run)
        assert store.has(run.workload, run.device, run.setting)
        assert store.has(run.workload, run.device, run.setting, "monday")
        assert not store.has(run.workload, run.device, run.setting, "tuesday")
        assert not store.has(run.workload, run.device, Setting(threads=1))
        assert not store.has(CNN, run.device, run.setting)

    @pytest.mark.parametrize(
        ("only", "numbers"),
        [
            ({"family": "matmul"}, [1, 2]),
            ({"kind": "operator"}, [1, 2]),
            ({"precision": "bf16"}, [2]),
            ({"mode": "infer"}, [1]),
            ({"status": Status.OUT_OF_MEMORY}, [3]),
            ({"status": "out of memory"}, [3]),
            ({"device": "cpu of mine"}, [4]),
            ({"session": "tuesday"}, [4]),
            ({"min_batch": 16}, [1, 2]),
            ({"max_batch": 16}, [0, 1, 3, 4]),
            ({"min_batch": 5, "max_batch": 16}, [1]),
            ({"family": "matmul", "mode": "train"}, [2]),
            ({"family": None, "min_batch": None}, [0, 1, 2, 3, 4]),
            ({"family": "no such"}, []),
        ],
    )
    def test_a_filter_leaves_out_what_does_not_pass(self, store, only, numbers):
        matmul = dataclasses.replace(CNN, family="matmul", kind="operator")
        runs = [
            run_of(0),
            run_of(1, workload=dataclasses.replace(matmul, batch=16, mode="infer")),
            run_of(2, workload=dataclasses.replace(matmul, batch=32, precision="bf16")),
            failed_run(3),
            run_of(4, session="tuesday", device=dataclasses.replace(H200, name="cpu of mine", kind="cpu")),
        ]
        store.add_all(runs)
        assert list(store.runs(**only)) == [runs[number] for number in numbers]
        assert store.count(**only) == len(numbers)

    def test_a_filter_that_there_is_not_is_refused_before_anything_is_read(self, store):
        with pytest.raises(TypeError, match="there is no filter 'colour'"):
            store.runs(colour="red")
        with pytest.raises(BadTerm, match="'fine' is not a valid Status; there are measured, "):
            store.runs(status="fine")

    def test_the_newest_come_first_whatever_the_zone_they_were_measured_in(self, store):
        at = ["2026-11-16T12:00:00+00:00", "2026-11-16T12:30:00+02:00", "2026-11-16T11:00:00-05:00"]
        host = Provenance(measured_at="", session="monday", hostname="host")
        for number, moment in enumerate([*at, at[2]]):
            store.add(run_of(number, provenance=dataclasses.replace(host, measured_at=moment)))
        assert [run.workload.parameters["layers"] for run in store.runs(newest_first=True)] == [3, 2, 0, 1]

    def test_runs_beyond_one_page_come_once_and_in_order(self, store):
        numbers = list(range(510))
        random.Random(1).shuffle(numbers)
        runs = [run_of(number) for number in numbers]
        assert store.add_all(runs) == (510, 0)
        assert list(store.runs()) == runs
        newest = list(store.runs(newest_first=True))
        assert len(newest) == 510
        assert all(a >= b for a, b in pairwise(map(attrgetter("provenance.measured_at"), newest)))

    def test_runs_are_counted_by_family_precision_and_status(self, store):
        store.add_all([run_of(0), run_of(1), failed_run(2)])
        cell = {"family": "cnn", "precision": "fp32"}
        assert store.coverage() == [
            Coverage(**cell, status=Status.MEASURED, runs=2),
            Coverage(**cell, status=Status.OUT_OF_MEMORY, runs=1),
        ]

    def test_many_are_added_all_or_none(self, store):
        def stopped_midway():
            yield run_of(1)
            yield run_of(2)
            raise KeyboardInterrupt

        store.add(run_of(0))
        with pytest.raises(KeyboardInterrupt):
            store.add_all(stopped_midway())
        assert list(store.runs()) == [run_of(0)]
        assert store.add_all([run_of(0), run_of(1), run_of(1)]) == (1, 2)
        assert store.count() == 2

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"dataset_size": 2**63}, r"Run\.dataset_size: 9223372036854775808 does not fit in 64 bits"),
            ({"reason": "a\0b"}, r"Run\.reason: 'a\\x00b' holds a NUL"),
            ({"reason": "\ud800"}, r"Run\.reason: '\\ud800' holds a NUL or half a surrogate"),
            ({"condition": Condition(busy_ratio=float("nan"))}, r"Run\.condition\.busy_ratio: nan is not a finite"),
            (
                {"provenance": Provenance(measured_at="2026-11-16T12:00", session="s", hostname="h")},
                r"Run\.provenance\.measured_at: expected a time like",
            ),
        ],
    )
    def test_what_not_every_store_can_give_back_is_refused_by_all(self, store, changes, complaint):
        with pytest.raises(BadTerm, match=complaint):
            store.add(run_of(1, **changes))
        assert store.count() == 0

    @pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.gz"])
    def test_an_export_moves_everything_to_another_record(self, store, tmp_path, name):
        runs = [run_of(0), failed_run(1), run_of(2, session="tuesday")]
        store.add_all(runs)
        assert export_runs(store, tmp_path / name) == 3
        with open_store(tmp_path / "other.sqlite") as other:
            assert import_runs(other, tmp_path / name) == (3, 0)
            assert list(other.runs()) == runs
        assert import_runs(store, tmp_path / name) == (0, 3)

    def test_an_import_with_a_broken_line_in_the_middle_adds_nothing(self, store, tmp_path):
        with open_store(tmp_path / "other.jsonl") as other:
            other.add_all([run_of(0), run_of(1), run_of(2)])
            export_runs(other, tmp_path / "runs.jsonl")
        lines = (tmp_path / "runs.jsonl").read_text().splitlines()
        lines[2] = lines[2].replace('"batch":4', '"batch":"four"')
        (tmp_path / "runs.jsonl").write_text("\n".join(lines) + "\n")
        with pytest.raises(BadInput, match=r"runs\.jsonl, line 3: Run\.workload\.batch: expected int, got 'four'"):
            import_runs(store, tmp_path / "runs.jsonl")
        assert list(store.runs()) == []

    def test_two_writers_at_once_lose_nothing_and_double_nothing(self, place, start_writer):
        # Both begin with a record that is not there yet; two of the three want the same runs.
        writers = [start_writer(str(place), session, 40) for session in ("monday", "monday", "tuesday")]
        for writer in writers:
            _, complaint = writer.communicate()
            assert writer.returncode == 0, complaint
        with open_store(place) as store:
            assert store.count(session="monday") == store.count(session="tuesday") == 40

    def test_readers_see_only_whole_runs_while_one_writes(self, place, start_writer):
        writer = start_writer(str(place), "monday", 100_000)
        assert writer.stdout.readline() == "open\n"
        seen: list[int] = []
        with open_store(place) as reader:
            while len(set(seen)) < 4:
                assert writer.poll() is None
                runs = list(reader.runs())
                assert runs == [run_of(number) for number in range(len(runs))]
                seen.append(len(runs))
        assert seen == sorted(seen)

    def test_a_writer_killed_at_any_moment_leaves_whole_runs_and_all_it_had_confirmed(self, place, start_writer):
        chance = random.Random(3)
        for session in ("first", "second", "third"):
            writer = start_writer(str(place), session, 100_000)
            lines = [writer.stdout.readline() for _ in range(chance.randint(0, 30))]
            writer.kill()
            lines += writer.communicate()[0].splitlines(keepends=True)
            confirmed = sum(line.endswith("\n") for line in lines) - ("open\n" in lines)
            with open_store(place) as store:
                runs = list(store.runs(session=session))
                assert runs == [run_of(number, session=session) for number in range(len(runs))]
                assert confirmed <= len(runs) <= confirmed + 1
                assert store.add(run_of(0, session=f"after the {session}"))

    def test_a_writer_killed_while_it_adds_many_leaves_none_of_them(self, place, start_writer):
        with open_store(place) as store:
            store.add(run_of(0))
        writer = start_writer(str(place), "tuesday", 100_000, "all")
        for _ in range(100):
            assert writer.stdout.readline()
        writer.kill()
        writer.communicate()
        with open_store(place) as store:
            assert list(store.runs()) == [run_of(0)]
            assert store.add(run_of(1))
            assert store.add_all([run_of(2)]) == (1, 0)
