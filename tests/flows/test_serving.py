"""A model served in this process: knobs as they are typed, loads, trials, failures, and what runs beside."""

import math
import os
import time

import pytest

from wattsmith.flows.serving import Load, load_of_trace, served_at, tried, tune_serving
from wattsmith.flows.serving_beside import FineTuning, learn_contention
from wattsmith.flows.serving_knobs import KNOBS, How, NotAvailable, how_of
from wattsmith.flows.serving_live import Stretch, serve_live
from wattsmith.flows.serving_model import ServedModel
from wattsmith.flows.tuning import Goal, Manner, knob_of, parse_knobs
from wattsmith.measure.session import Session
from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Failed

torch = pytest.importorskip("torch", reason="SERVING IS NOT TESTED: torch is not installed")
pytest.importorskip("scipy", reason="SERVING IS NOT TESTED: scipy is not installed")

METERS = "modelled:10W-65W"


def build():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


class Fussy(torch.nn.Module):
    """Takes no more than two at once."""

    def __init__(self):
        super().__init__()
        self.inside = build()

    def forward(self, images):
        if images.shape[0] > 2:
            raise RuntimeError("out of memory, so to say")
        return self.inside(images)


@pytest.fixture
def model():
    with ServedModel(build, inputs=["3x4x4"]) as made:
        yield made


@pytest.fixture
def session():
    with Session([]) as made:
        yield made


def test_a_setting_is_read_as_it_is_typed():
    how = how_of(
        {
            "batch": 4, "concurrency": 2, "wait": "5ms", "pace": 0, "precision": "bf16", "graph": "on",
            "share": "50%", "threads": 3, "affinity": "0-1+4", "layout": "channels-last",
        }
    )  # fmt: skip
    assert (how.policy.batch, how.policy.concurrency, how.policy.wait_s, how.policy.pace_s) == (4, 2, 0.005, 0.0)
    assert (how.precision, how.graph, how.share, how.threads) == ("bf16", True, 0.5, 3)
    assert how.affinity == (0, 1, 4)
    assert how_of({}) == How()  # batch 1, fp32, one server: what a person writes first


@pytest.mark.parametrize(
    ("knob", "level", "said"),
    [
        ("batch", 0, "whole number"),
        ("batch", "many", "whole number"),
        ("wait", 5, "no unit"),
        ("precision", "fp8", "fp32, tf32, bf16, fp16"),
        ("share", "150%", "share of the GPU"),
        ("affinity", "all", "0-3"),
        ("fan", 3, ", ".join(KNOBS)),
    ],
)
def test_what_is_typed_wrongly_is_said(knob, level, said):
    with pytest.raises(BadInput, match=f"knob {knob}: .*{said}"):
        how_of({knob: level})


def test_every_server_answers_batches_of_every_size(model):
    servers = model.servers(how_of({"batch": 3, "concurrency": 2}))
    assert len(servers) == 2
    for size in (1, 2, 3):
        servers[1](size)
    assert model.module(How())(torch.zeros(2, 3, 4, 4)).shape == (2, 4)


def test_a_precision_is_that_of_weights_and_queries(model):
    how = how_of({"precision": "bf16"})
    assert {one.dtype for one in model.module(how).parameters()} == {torch.bfloat16}
    assert model.sample(2, how).args[0].dtype == torch.bfloat16
    assert {one.dtype for one in model.module(How()).parameters()} == {torch.float32}


def test_threads_cores_and_switches_are_set_back():
    before = torch.get_num_threads(), os.sched_getaffinity(0)
    one_core = min(before[1])
    with ServedModel(build, inputs=["3x4x4"]) as model:
        model.servers(how_of({"threads": before[0] + 1, "affinity": str(one_core)}))
        assert torch.get_num_threads() == before[0] + 1
        assert os.sched_getaffinity(0) == {one_core}
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == before


@pytest.mark.parametrize("setting", [{"graph": "on"}, {"share": "50%"}, {"precision": "tf32"}, {"affinity": "4000"}])
def test_what_a_cpu_has_not_is_not_available(model, setting):
    with pytest.raises(NotAvailable):
        model.servers(how_of(setting))


def test_a_load_is_served_and_told(model, session):
    got = tried(model, {"batch": 4}, Load(rate_hz=200.0, duration_s=0.2), session)
    assert got.metrics["answered_share"] == 1.0
    assert 0 < got.metrics["latency_p50_s"] <= got.metrics["latency_p99_s"] < 0.2
    assert "energy_j" not in got.metrics  # there is no meter, and it is not made up
    assert got.noise["latency_p99"] >= 0.01


@pytest.mark.parametrize(
    ("load", "queries"),
    [
        (Load(rate_hz=100.0, duration_s=0.1), 10),
        (Load(kind="steady", rate_hz=50.0, duration_s=0.1), 5),
        (Load(kind="trace", times_s=(0.0, 0.01, 0.02, 5.0), duration_s=0.1), 3),
    ],
)
def test_queries_come_as_the_load_says(model, load, queries):
    came = served_at(model.servers(How()), How(), load)
    assert came.answered == came.arrived == queries


def test_clients_ask_again_when_they_are_answered(model):
    came = served_at(model.servers(How()), How(), Load(kind="clients", clients=2, duration_s=0.1))
    assert came.answered == came.arrived > 2
    assert came.duration_s == pytest.approx(0.1, abs=0.1)


def test_a_trace_is_read_from_a_file(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,tokens\n10.0,5\n10.5,7\n12.0,1\n")
    assert load_of_trace(file).times_s == (0.0, 0.5, 2.0)
    assert load_of_trace(file, faster=2.0).times_s == (0.0, 0.25, 1.0)
    file.write_text("1.0\nsoon\n")
    with pytest.raises(BadInput, match="line 2: 'soon' is no time"):
        load_of_trace(file)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate_hz": 0.0}, "positive"),
        ({"rate_hz": 0.1, "duration_s": 1.0}, "none in 1 s"),
        ({"kind": "clients"}, "at least one client"),
        ({"kind": "burst", "rate_hz": 1.0}, "no load 'burst'"),
        ({"kind": "trace"}, "without arrivals"),
        ({"rate_hz": math.inf}, "positive"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(options, said):
    with pytest.raises(BadInput, match=said):
        Load(**options)


def test_a_served_model_is_tuned():
    said = []
    knobs = parse_knobs(["batch=1,2,4", "wait=0,2ms", "graph=off,on"], [], first=True)
    found = tune_serving(
        build,
        knobs,
        Load(rate_hz=100.0, duration_s=0.2),
        Goal(limits=("latency_p99<=10s",), manner=Manner(budget=5)),
        inputs=["3x4x4"],
        meters=METERS,
        say=said.append,
    )
    assert found.trials[0].trial.setting == {"batch": 1, "wait": 0, "graph": "off"}
    assert found.recommendation.kept
    assert found.trials[-1].trial.setting == found.trials[0].trial.setting  # whether the machine has drifted
    assert "graph=on is left out: graphs are recorded on GPUs alone" in said
    assert "energy is modelled" in said[0]
    assert found.spent_j > 0


def test_a_setting_that_fails_is_not_the_end():
    found = tune_serving(
        Fussy,
        [knob_of("batch", [1, 2, 4], "1")],
        Load(rate_hz=100.0, duration_s=0.1),
        Goal(manner=Manner(budget=4, least_gain=0.0)),
        inputs=["3x4x4"],
        meters=METERS,
    )
    why = next(one.trial.failed for one in found.trials if one.trial.setting == {"batch": 4})
    assert why == "RuntimeError: out of memory, so to say"
    assert found.recommendation.setting["batch"] in (1, 2)


def test_an_overload_has_a_latency_and_no_end_of_waiting(session):
    class Slow(torch.nn.Module):
        def forward(self, images):
            time.sleep(0.02)
            return images

    with ServedModel(Slow(), inputs=["4"]) as model:
        got = tried(model, {}, Load(rate_hz=500.0, duration_s=0.2), session)
    assert not isinstance(got, Failed)
    assert got.metrics["answered_share"] < 0.5
    assert got.metrics["latency_p99_s"] > 0.2


def test_where_the_search_starts_must_work():
    with pytest.raises(BadInput, match="cannot start at on"):
        tune_serving(
            build, parse_knobs(["graph=on,off"], [], first=True), Load(rate_hz=50.0), inputs=["3x4x4"], meters=METERS
        )


def test_without_a_meter_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    knobs, load = [knob_of("batch", [1, 2], "1")], Load(rate_hz=100.0, duration_s=0.1)
    with pytest.raises(BadInput, match="no meter tells the energy of cpu here"):
        tune_serving(build, knobs, load, inputs=["3x4x4"])
    found = tune_serving(build, knobs, load, Goal(objective="time", manner=Manner(budget=2)), inputs=["3x4x4"])
    assert found.spent_j is None


def test_fine_tuning_beside_can_be_held_and_goes_on():
    beside = FineTuning(build, batch=4, inputs=["3x4x4"])
    with beside:
        until(lambda: beside.steps > 2)
        beside.hold()
        held = beside.steps
        time.sleep(0.05)
        assert beside.steps == held
        beside.go_on()
        until(lambda: beside.steps > held)
    ended = beside.steps
    time.sleep(0.02)
    assert beside.steps == ended


def test_what_fine_tuning_raises_is_told_at_its_end():
    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.calls = build(), 0

        def forward(self, images):
            self.calls += 1
            if self.calls > 5:
                raise RuntimeError("the data is gone")
            return self.inside(images)

    beside = FineTuning(Broken, batch=2, inputs=["3x4x4"]).start()
    time.sleep(0.1)
    with pytest.raises(BadInput, match="the data is gone"):
        beside.close()


def test_what_sharing_costs_is_learned_from_pairs(model):
    shared = learn_contention(model, How(), [FineTuning(build, batch=4, inputs=["3x4x4"])], (1, 4), 0.02)
    assert [(one.inference.batch, bool(one.fine_tuning)) for one in shared.pairs] == [
        (1, False), (4, False), (1, True), (4, True),
    ]  # fmt: skip
    few, many = shared.pairs[0].inference, shared.pairs[1].inference
    assert many.flops == 4 * few.flops
    assert shared.contention.latency_s(few) > 0


def test_a_live_search_moves_and_starts_again_when_the_load_changes():
    knobs = parse_knobs(["batch=1,2,4", "wait=0,1ms"], [], first=True)
    stretches = [Stretch(rate_hz=100.0, duration_s=0.5), Stretch(rate_hz=300.0, duration_s=0.1)]
    windows = list(
        serve_live(build, knobs, stretches, "latency_p99<=10s", inputs=["3x4x4"], meters=METERS, window_s=0.1)
    )
    assert [one.rate_hz for one in windows] == [100.0] * 5 + [300.0]
    assert windows[0].setting == windows[5].setting == {"batch": 1, "wait": 0}
    assert any(one.setting != windows[0].setting for one in windows)


def test_a_limit_that_nothing_keeps_holds_fine_tuning_and_stays_safe():
    said = []
    windows = list(
        serve_live(
            build,
            [knob_of("batch", [1, 2], "1")],
            [Stretch(rate_hz=100.0, duration_s=0.3)],
            "latency_p99<=1us",
            inputs=["3x4x4"],
            meters=METERS,
            beside=FineTuning(build, batch=2, inputs=["3x4x4"]),
            window_s=0.1,
            say=said.append,
        )
    )
    assert {one.setting["batch"] for one in windows} == {1}
    assert {one.trained for one in windows} == {None}
    assert said == ["at 100/s the limit leaves no room for fine-tuning: it is held"]


def test_at_each_new_rate_it_is_planned_what_fits_beside_fine_tuning():
    beside = FineTuning(build, batch=2, inputs=["3x4x4"])
    stretches = [Stretch(rate_hz=rate_hz, duration_s=0.1) for rate_hz in (100.0, 200.0)]
    knobs = parse_knobs(["batch=1,2,4", "wait=0,20ms"], [], first=True)
    options = {"inputs": ["3x4x4"], "meters": METERS, "beside": beside, "window_s": 0.1}
    windows = list(serve_live(build, knobs, stretches, "latency_p99<=5s", **options))
    assert {one.setting["wait"] for one in windows} == {"20ms"}  # the fewest batches, with seconds to spare
    assert all(one.trained > 0 for one in windows)


def test_what_was_not_foreseen_holds_fine_tuning_too():
    """Where the batch is not turned nothing is planned, and the limit itself tells."""
    said = []
    options = {"inputs": ["3x4x4"], "meters": METERS, "window_s": 0.1, "say": said.append}
    beside = FineTuning(build, batch=2, inputs=["3x4x4"])
    stretches = [Stretch(rate_hz=100.0, duration_s=0.2), Stretch(rate_hz=50.0, duration_s=0.1)]
    knobs = [knob_of("wait", [0, "1ms"], "0")]
    windows = list(serve_live(build, knobs, stretches, "latency_p99<=1us", beside=beside, **options))
    assert [one.trained is None for one in windows] == [False, True, False]
    assert said[:2] == ["the limit is broken at the safe setting: fine-tuning is held", "at 50/s fine-tuning goes on"]


@pytest.mark.parametrize("limit", ["power<=3W", "latency_p99<=2x", "latency_p99>=1s"])
def test_a_live_search_keeps_a_latency(limit):
    with pytest.raises(BadInput, match="keeps a limit such as"):
        next(serve_live(build, [knob_of("batch", [1], "1")], [Stretch(rate_hz=1.0, duration_s=1.0)], limit))


def until(condition, within_s=5.0):
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
