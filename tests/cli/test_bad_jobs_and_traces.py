"""What people get wrong in job files and traces, through the doors: named where it stands, or left out and said."""

import json
import math

import pytest

pytest.importorskip("scipy", reason="BAD JOBS AND TRACES ARE NOT TESTED: scipy is not installed")
pytest.importorskip("yaml", reason="BAD JOBS AND TRACES ARE NOT TESTED: PyYAML is not installed")

POOL = "nodes:\n  - {name: node, device: a100, count: 2, memory: 40GiB, idle: 20W}\n"
JOB = "jobs:\n  - {name: first, steps: 3600, step: 1s, power: 100W, memory: 8GiB}\n"


@pytest.fixture
def planned(wattsmith_here, tmp_path):
    """Runs `wattsmith plan` on jobs in TEXT, which must be refused: what it says."""

    def run(text, *more):
        jobs, pool = tmp_path / "jobs.yaml", tmp_path / "pool.yaml"
        jobs.write_text(text)
        pool.write_text(POOL)
        out, err = wattsmith_here("plan", jobs, "--pool", pool, "--now", "2026-01-01T00:00Z", *more, code=2)
        assert not out
        return " ".join(err.split())

    return run


def test_a_job_that_no_device_can_hold_is_refused_with_the_smallest_that_would_do(planned):
    said = planned(JOB.replace("8GiB", "60GiB"))
    assert "'first' needs up to 60 GiB of each device, and the largest of the pool has 40 GiB" in said
    assert "the smallest known that would do is AMD Instinct MI210 with 64 GiB" in said


def test_a_budget_below_idle_power_says_what_is_drawn_when_idle(planned):
    assert "draws 40 W when idle" in planned(JOB, "--power-budget", "30W")


def test_a_deadline_in_the_past_is_refused_for_all_and_for_one(planned):
    assert "is in the past" in planned(JOB, "--deadline", "2025-06-01")
    said = planned(JOB.replace("8GiB}", "8GiB, deadline: 2025-06-01}"))
    assert "the deadline of 'first', 2025-06-01 00:00Z, is in the past" in said


def test_a_circular_file_is_refused_with_line_and_field(planned):
    said = planned("jobs: &all\n  - {name: first, steps: 1, step: 1s, power: 1W, on: *all}\n")
    assert "line 1, jobs[1].on: it holds itself" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jobs:\n  - {name: first, steps: [}\n", "line 2"),
        ("jobs:\n  - {name: first, steps: 10, step: 1 parsec, power: 1W}\n", "step"),
        ("jobs:\n  - {name: first, steps: -3, step: 1s, power: 1W}\n", "steps"),
        ("jobs:\n  - {name: first, stepz: 10, step: 1s, power: 1W}\n", "stepz"),
    ],
)
def test_a_malformed_file_names_line_and_field(planned, text, says):
    said = planned(text)
    assert "line 2" in said
    assert says in said


@pytest.fixture
def matched(wattsmith_here, tmp_path):
    """Runs `wattsmith match --json` on rows of time, power, use, and joules so far."""

    def run(rows, code):
        path = tmp_path / "trace.csv"
        lines = [",".join("" if one is None else str(one) for one in row) for row in rows]
        path.write_text("\n".join(["time_s,power_w,busy_ratio,energy_j,power_limit_w", *lines]))
        return wattsmith_here("match", path, "--record", "h200", "--steps-per-s", "10", "--json", code=code)

    return run


def rows(seconds_s=10.0, **changed):
    found = []
    for place in range(int(10 * seconds_s)):
        row = {"time_s": place / 10, "power_w": 400.0 + place % 3, "busy_ratio": 0.9, "energy_j": 40.0 * place}
        row |= {name: change(place, row[name]) for name, change in changed.items()}
        found.append((*row.values(), 700.0))
    return found


def notes(answer):
    return " ".join(json.loads(answer[0])["notes"])


def either(run, made):
    """The answer, whether something is near or not: that is not what is asked here."""
    try:
        return run(made, 0)
    except AssertionError:
        return run(made, 3)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"power_w": lambda place, value: math.nan if place % 10 == 5 else value}, "not a number"),
        ({"power_w": lambda place, value: -value if place % 10 == 5 else value}, "negative"),
        ({"energy_j": lambda place, value: value - 1000.0 * (place > 60)}, "energy_j runs backward"),
        ({"time_s": lambda place, value: value - 2.0 * (place == 50)}, "time runs backward"),
    ],
)
def test_telemetry_that_cannot_be_is_left_out_and_said(matched, changed, says):
    assert says in notes(either(matched, rows(**changed)))


def test_a_trace_that_is_all_nonsense_is_refused_by_name(matched):
    nothing = {name: lambda _, __: math.nan for name in ("power_w", "busy_ratio", "energy_j")}
    _, err = matched(rows(**nothing), 2)
    assert "nothing that can be used" in err


def test_a_trace_of_two_seconds_is_refused_with_its_length(matched):
    _, err = matched(rows(2.0), 2)
    assert "1.9 s long" in err
