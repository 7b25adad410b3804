"""Plans from files: what is written, what is estimated, what is refused and where."""

from types import SimpleNamespace

import pytest

from wattsmith.flows.planning import Objective, Wish, plan_files, read_schedule, write_schedules
from wattsmith.terms.errors import BadInput
from wattsmith.terms.schedule import NoPlan
from wattsmith.terms.work import Interval

pytest.importorskip("scipy", reason="PLANS ARE NOT TESTED: scipy is not installed")
pytest.importorskip("yaml", reason="PLANS ARE NOT TESTED: PyYAML is not installed")

GIB = 2**30
POOL = """
nodes:
  - {name: left, device: a100, count: 2, memory: 40GiB, idle: 50W, base: 100W, power_limits: [100W, 300W]}
  - {name: right, device: v100, memory: 16GiB, idle: 30W}
"""
JOB = """
jobs:
  - name: resnet
    steps: 3600
    memory: 20GiB
    curve:
      - {power_limit: 300W, step: 1s, power: 280W}
      - {power_limit: 150W, step: 1.4s, power: 148W}
"""


@pytest.fixture
def planned(tmp_path):
    """Plans the jobs in a text on the pool in another, as of 1970."""

    def run(jobs, pool=POOL, estimator=None, **wishes):
        for name, text in (("jobs.yaml", jobs), ("pool.yaml", pool)):
            (tmp_path / name).write_text(text)
        return plan_files(
            tmp_path / "jobs.yaml", tmp_path / "pool.yaml", Wish(now_s=0.0, **wishes), estimator=estimator
        )

    return run


def test_a_job_runs_frugally_on_the_machine_that_has_its_memory(planned):
    plan, (schedule,) = planned(JOB, deadline_s=7200.0)
    assert {(one.node, one.point.setting.power_limit_w) for one in plan.stretches} == {("left", 150.0)}
    assert schedule.client == "left"


def test_a_deadline_hurries_it(planned):
    plan, _ = planned(JOB.replace("memory", "deadline: 1h\n    memory"))
    assert {one.point.setting.power_limit_w for one in plan.stretches} == {300.0}


def test_schedules_are_written_one_per_machine_and_read_back(planned, tmp_path):
    _, schedules = planned(JOB)
    (path,) = write_schedules(schedules, tmp_path / "out")
    assert path.name == "left.json"
    assert read_schedule(path) == schedules[0]


def test_at_most_two_gpus_means_one_or_two(planned):
    text = JOB.replace("memory: 20GiB", "memory: 20GiB\n    gpus: {most: 2}")
    fast, _ = planned(text, objective=Objective.TIME)
    assert len(fast.stretches[0].devices) == 2
    assert fast.end_s == pytest.approx(3600 / 1.9)  # 5 % are lost with the doubling
    few, _ = planned(text.replace("{most: 2}", "fewest"), objective=Objective.TIME)
    assert len(few.stretches[0].devices) == 1


def test_memory_that_no_device_has_names_the_smallest_that_would_do(planned):
    with pytest.raises(NoPlan, match=r"'resnet' needs up to 60 GiB.*largest of the pool has 40 GiB.*would do is"):
        planned(JOB.replace("20GiB", "60GiB"))


def test_a_data_sheet_tells_the_memory_that_a_pool_does_not(planned):
    pool = "nodes:\n  - {name: a, device: v100}\n"
    with pytest.raises(NoPlan, match="100 GiB"):
        planned(JOB.replace("20GiB", "100GiB"), pool)


def test_a_model_is_estimated_at_several_limits_and_its_memory_counts_by_its_upper_end(planned):
    asked = []

    def estimator(model, _inputs, **options):
        asked.append((model, options["device"], options["devices"], options["power_limit_w"]))
        power_w = options["power_limit_w"] or 250.0
        return SimpleNamespace(
            step_s=Interval(value=100.0 / power_w, low=90.0 / power_w, high=110.0 / power_w),
            power_w=Interval(value=power_w, low=0.9 * power_w, high=1.1 * power_w),
            memory=SimpleNamespace(peak_held_bytes=Interval(value=14.0 * GIB, low=12.0 * GIB, high=18.0 * GIB)),
        )

    text = "jobs:\n  - {name: net, model: 'net.py:build', batch: 10, samples: 1000, epochs: 3}\n"
    plan, _ = planned(text, estimator=estimator)
    assert ("net.py:build", "a100", 1, 300.0) in asked
    assert ("net.py:build", "v100", 1, None) in asked
    assert {one.node for one in plan.stretches} == {"left"}  # 18 GiB may be needed, and the other has 16
    assert sum(one.steps for one in plan.stretches) == pytest.approx(300.0)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("steps: 3600", "steps: many", r"line 4, jobs\[1\].steps: must be a positive number, got 'many'"),
        ("steps: 3600", "stepps: 3600", r"line 4, jobs\[1\].stepps: .*did you mean steps"),
        ("20GiB", "20", r"line 5, jobs\[1\].memory: '20' has no unit"),
        ("280W", "280s", r"line 7, jobs\[1\].curve\[1\].power: .*unit of time"),
        ("280W", "-280W", r"curve\[1\].power: must not be negative"),
        ("step: 1s, ", "", r"line 7, jobs\[1\].curve\[1\]: a point needs power, and step"),
        ("name: resnet", "name: resnet\n    name: again", r"line 4, jobs\[1\].name: it is said twice"),
        ("memory: 20GiB", "memory: 20GiB\n    deadline: soon", r"line 6, jobs\[1\].deadline: 'soon' is no time"),
        ("memory: 20GiB", "memory: 20GiB\n    after: [ghost]", r"line 6, jobs\[1\].after: .* called 'ghost'"),
        ("memory: 20GiB", "memory: 20GiB\n    after: [resnet]", r"line 6, jobs\[1\].after: .*resnet after resnet"),
        (
            "power: 280W}",
            "power: 280W}\n      - {power_limit: 300W, step: 2s, power: 270W}",
            r"the same setting .*line 7",
        ),
        ("280W", "1e200W", r"line 7, jobs\[1\].curve\[1\]: .*no device draws"),
        ("memory: 20GiB", "memory: 20GiB\n    gpus: {least: 3, most: 2}", r"gpus: at least 3 and at most 2"),
        ("memory: 20GiB", "memory: 20GiB\n    pausable: perhaps", r"pausable: must be yes or no"),
        ("memory: 20GiB", "memory: [20GiB", r"line \d+: this is no YAML"),
        ("  - name: resnet", "  - &me\n    name: resnet\n    on: *me", r"it holds itself"),
        ("    curve:", "    curves:", r"did you mean curve"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_by_line_and_field(planned, old, new, says):
    assert old in JOB
    with pytest.raises((BadInput, NoPlan), match=says):
        planned(JOB.replace(old, new, 1))


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        ("", "is empty"),
        ("- a\n", "must hold names"),
        ("jobs: []\n", "no job in it"),
        ("jobs: 5\n", "must be a list"),
        ("work: []\n", "'work' is not known here"),
        ("jobs:\n\t- a\n", "line 2: this is no YAML"),
        ("jobs: !!python/object:os.system {}\n", "must be a list"),
        ("jobs:\n  - {name: a, steps: 1}\n", r"line 2, jobs\[1\]: how does it run"),
        ("jobs:\n  - {name: a, step: 1s, power: 5W}\n", "how much is there to do"),
        (JOB + JOB.split("jobs:\n")[1], "stands in line 3 already"),
    ],
)
def test_a_file_without_jobs_says_so(planned, jobs, says):
    with pytest.raises(BadInput, match=says):
        planned(jobs)


def test_all_that_is_wrong_with_the_figures_of_a_job_is_told_at_once(planned):
    with pytest.raises(BadInput, match=r"jobs\[1\]\.power") as refused:
        planned("jobs:\n  - {name: a, steps: 1, step: 1s, power: 5s, memory: 3, doubt: 300%}\n")
    assert [field for field, _, _ in refused.value.problems] == ["jobs[1].power", "jobs[1].memory", "jobs[1].doubt"]


def test_what_is_wrong_with_several_nodes_is_told_at_once(planned):
    with pytest.raises(BadInput, match=r"(?s)nodes\[1\].*nodes\[2\]"):
        planned(JOB, "nodes:\n  - {name: a}\n  - {device: x}\n")


def test_a_circle_of_jobs_is_named_with_its_line_and_field(planned):
    lines = [f"  - {{name: {name}, steps: 1, step: 1s, power: 5W, after: [{other}]}}" for name, other in ("ab", "ba")]
    with pytest.raises(BadInput, match=r"line 2, jobs\[1\].after: .*circle: a after b after a"):
        planned("\n".join(["jobs:", *lines]))


def test_what_jobs_share_may_be_written_once(planned):
    plan, _ = planned(
        "jobs:\n  - &one {name: a, steps: 60, step: 1s, power: 100W}\n  - {<<: *one, name: b, steps: 120}\n"
    )
    assert sorted((one.job, one.steps) for one in plan.stretches) == [("a", 60.0), ("b", 120.0)]


FED = JOB.replace("memory:", "data_work: {made: 4s, worker: 5W}\n    memory:")


def test_data_workers_are_planned_with_what_is_written_of_them(planned):
    plan, (schedule,) = planned(FED, objective=Objective.TIME)
    assert [(one.data_workers, one.power_w) for one in plan.stretches] == [(6, 310.0)]  # ⌈1.15 × 4 + 0.5⌉ of 5 W
    assert schedule.works[0].shape.loader_workers == 6


def test_at_a_slower_setting_fewer_data_workers_are_planned(planned):
    plan, _ = planned(FED)
    assert [(one.data_workers, one.power_w) for one in plan.stretches] == [(4, 168.0)]  # ⌈1.15 × 4 / 1.4 + 0.5⌉ of 5 W


def test_cores_of_a_node_are_a_limit_to_its_data_workers(planned):
    plan, _ = planned(FED, POOL.replace("base: 100W", "base: 100W, cores: 4"), objective=Objective.TIME)
    assert [(one.data_workers, one.until_s) for one in plan.stretches] == [(2, 7200.0)]  # two devices share four
    assert any("resnet is data-bound on left" in note for note in plan.notes)


def test_more_devices_than_the_figures_are_of_share_the_batches(planned):
    job = FED.replace("memory:", "scaling: 1.0\n    gpus: {most: 2}\n    memory:")
    (one,) = planned(job, objective=Objective.TIME)[0].stretches
    assert len(one.devices) == 2
    assert one.until_s == pytest.approx(1800.0)  # two steps of the job a second, one batch a second for each device
    assert one.point.data_workers.needed == pytest.approx(4.0)


def test_data_workers_of_a_model_are_those_of_its_estimated_step(planned):
    def estimator(*_, devices, **__):
        about = {"step_s": 1.0, "power_w": 100.0 * devices}
        memory = SimpleNamespace(peak_held_bytes=Interval(value=1.0, low=1.0, high=1.0))
        return SimpleNamespace(memory=memory, **{k: Interval(value=v, low=v, high=v) for k, v in about.items()})

    text = (
        "jobs:\n  - {name: net, model: 'net.py:build', batch: 10, samples: 1000, epochs: 3, gpus: 2, "
        "data_work: {made: 4s}}\n"
    )
    (one,) = planned(text, estimator=estimator)[0].stretches
    assert one.until_s == 150.0  # 300 batches, two a second
    assert one.point.data_workers.needed == 4.0  # each device takes one


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("data_work: {made: 4}", r"line 5, jobs\[1\].data_work.made: '4' has no unit"),
        ("data_work: {made: 0s}", r"data_work.made: must be more than nothing"),
        ("data_work: {made: 1e300s}", r"line 5, jobs\[1\].data_work: .*is of no worker"),
        ("data_work: {worker: 5W}", r"line 5, jobs\[1\].data_work: needs made"),
        ("data_work: {make: 4s}", r"data_work.make: .*did you mean made"),
        ("data_work: 4s", r"data_work: must hold names"),
        ("data_work: {made: 4s}\n    loader_workers: 3", r"line 5, jobs\[1\].data_work: .*leave out loader_workers"),
    ],
)
def test_data_work_that_makes_no_sense_is_named_by_line_and_field(planned, written, says):
    with pytest.raises(BadInput, match=says):
        planned(JOB.replace("memory:", f"{written}\n    memory:"))


def test_all_that_is_wrong_with_data_work_is_told_at_once(planned):
    with pytest.raises(BadInput, match="data_work") as refused:
        planned(JOB.replace("memory:", "data_work: {made: 4W, worker: 5s, cores: 3}\n    memory:"))
    assert sorted(field for field, _, _ in refused.value.problems) == [
        f"jobs[1].data_work.{name}" for name in ("cores", "made", "worker")
    ]


@pytest.mark.parametrize(("doubt", "guard_w"), [("", 280 * 0.05 * 2.326), ("doubt: 0%", 0.0), ("doubt: 1%", 6.51)])
def test_a_doubt_of_nothing_is_not_the_same_as_none_stated(planned, doubt, guard_w):
    job = f"jobs:\n  - {{name: a, steps: 60, step: 1s, power: 280W, {doubt}}}\n"
    assert planned(job)[0].guard_w == pytest.approx(guard_w, rel=1e-3)


def test_aliases_that_unfold_without_end_are_refused(planned):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(BadInput, match="unfold"):
        planned("\n".join(lines))


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        ("nodes: []\n", "at least one"),
        ("nodes:\n  - {name: a}\n", r"line 2, nodes\[1\]: a node needs a device"),
        ("nodes:\n  - {name: a, device: x, count: 0}\n", r"nodes\[1\].count: must be a whole number from 1 on"),
        ("nodes:\n  - {name: a, device: x, power_limits: [300W, 100W]}\n", "least and the most"),
        ("nodes:\n  - {name: a, device: x}\n  - {name: a, device: x}\n", "two nodes called 'a'"),
        ("nodes:\n  - {name: a, device: x, cores: 0}\n", r"nodes\[1\].cores: must be a whole number from 1 on"),
        ("nodes:\n  - {name: a, device: x, excluded: [4]}\n", "excluded names devices 0 to 0"),
    ],
)
def test_a_pool_that_makes_no_sense_is_named_by_line_and_field(planned, pool, says):
    with pytest.raises(BadInput, match=says):
        planned(JOB, pool)


def test_figures_for_a_kind_of_device_are_found_by_any_of_its_names(planned):
    job = "jobs:\n  - {name: a, steps: 60, on: {h200: {step: 1s, power: 300W}, l4: {step: 9s, power: 50W}}}\n"
    plan, _ = planned(job, "nodes:\n  - {name: left, device: NVIDIA H200}\n")
    assert [(one.node, one.power_w, one.until_s) for one in plan.stretches] == [("left", 300.0, 60.0)]


def test_a_job_without_figures_for_any_device_of_the_pool_is_refused(planned):
    with pytest.raises(BadInput, match="no figures for a100, v100"):
        planned("jobs:\n  - {name: a, steps: 1, on: {h200: {step: 1s, power: 5W}}}\n")
