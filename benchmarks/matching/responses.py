"""Curves of left-out programs and the settings chosen by them, beside other ways to guess a curve."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np  # noqa: TID253 - a script, not part of the package

from matching.rows import Row
from matching.sweeps import Sweep
from wattsmith.match.curves import CurveBook, curve_book, guess_response, probe_setting, response_logs
from wattsmith.match.recognising import recognise
from wattsmith.match.settling import SAME, TRIALS, settle, settle_unguided
from wattsmith.terms.telemetry import Benchmark, Fingerprint, Probe, RelativeResponse

SLOWDOWN = 0.05
GOLDEN = 5  # neighbours of the plain peers
Curves = tuple[np.ndarray, np.ndarray]  # logarithms of time and power ratios


@dataclass(frozen=True, slots=True)
class Case:
    """One program, and what may be known of the others."""

    point: Benchmark
    book: CurveBook
    probe: Probe
    truth: Curves


def cases_of(sweep: Sweep, probe_at: float | None = None) -> list[Case]:
    cases = []
    for point in sweep.points:
        assert point.response is not None
        rest = [other for other in sweep.points if other.group != point.group]
        book = curve_book(rest, point.response.settings, drawn_ratio=point.features.get("power_mean"))
        at = probe_setting(book.settings) if probe_at is None else probe_at
        cases.append(Case(point, book, measured(point.response, at), response_logs(point.response, book.settings)))
    return cases


def measured(response: RelativeResponse, setting: float) -> Probe:
    """What the program really gave at the setting nearest to SETTING."""
    place = min(range(len(response.settings)), key=lambda one: abs(response.settings[one] - setting))
    return Probe(
        setting=response.settings[place],
        time_ratio=response.time_ratio[place],
        power_ratio=response.power_ratio[place],
    )


def ours(case: Case, *, probed: bool = True) -> Curves:
    probes = [case.probe] if probed else []
    guess, _, _ = guess_response(case.book, case.point.features, probes, with_doubt=False)
    return np.log([one.value for one in guess.time_ratio]), np.log([one.value for one in guess.power_ratio])


def by_clock(case: Case) -> Curves:
    """Time as one over the clock; power as it is on average."""
    return -np.log(case.book.settings), mean_curve(case)[1]


def mean_curve(case: Case) -> Curves:
    mean = case.book.logs.mean(axis=0)
    return mean[: case.book.count], mean[case.book.count :]


def nearest_by_power(case: Case) -> Curves:
    """The one program whose power is nearest: a class for each, as nearest-class methods do."""
    mine = case.point.features.get("power_mean") or 0.0
    far = [abs((one.features.get("power_mean") or 0.0) - mine) for one in case.book.points]
    curve = case.book.logs[int(np.argmin(far))]
    return curve[: case.book.count], curve[case.book.count :]


def five_by_probe(case: Case) -> Curves:
    """Five neighbours by time and power at the probe, weighted by distance, and nothing else."""
    place = int(np.argmin(np.abs(np.array(case.book.settings) - case.probe.setting)))
    have = case.book.logs[:, [place, case.book.count + place]]
    want = np.log([case.probe.time_ratio or 1.0, case.probe.power_ratio or 1.0])
    far = np.sqrt((((have - want) / (have.std(axis=0) + 1e-9)) ** 2).sum(axis=1))
    near = np.argsort(far)[:GOLDEN]
    weights = 1 / (far[near] + 0.1)
    curve = weights @ case.book.logs[near] / weights.sum()
    return curve[: case.book.count], curve[case.book.count :]


def formula(case: Case) -> Curves:
    """One parameter each, fitted to the probe: time 1 + b (1 / s - 1), power s to the p."""
    settings = np.array(case.book.settings)
    share = ((case.probe.time_ratio or 1.0) - 1) / (1 / case.probe.setting - 1)
    power = np.log(case.probe.power_ratio or 1.0) / np.log(case.probe.setting)
    return np.log(np.maximum(1 + share * (1 / settings - 1), 0.05)), power * np.log(settings)


def own_smooth_curve(case: Case) -> Curves:
    """Its own measured curve without its noise: what nobody can know beforehand."""
    at = np.log(case.book.settings)
    degree = min(4, len(at) - 2)
    return tuple(np.polyval(np.polyfit(at, log, degree), at) for log in case.truth)  # type: ignore[return-value]


METHODS: dict[str, Callable[[Case], Curves]] = {
    "time as 1/clock": by_clock,
    "mean curve": mean_curve,
    "nearest by power": nearest_by_power,
    "not probed": partial(ours, probed=False),
    "formula at probe": formula,
    "5 by probe": five_by_probe,
}


def error(case: Case, curves: Curves) -> tuple[float, float]:
    """Mean error of time and power in per cent, over all settings but the usual and the probed one."""
    settings = np.array(case.book.settings)
    asked = (np.abs(settings - 1) > SAME) & (np.abs(settings - case.probe.setting) > SAME)
    time, power = (
        float(np.mean(np.abs(np.exp(guess - true) - 1)[asked])) for guess, true in zip(curves, case.truth, strict=True)
    )
    return 100 * time, 100 * power


def chosen(curves: Curves, settings: Sequence[float]) -> int:
    """Least energy among the settings that keep the limit."""
    kept = [place for place in range(len(settings)) if curves[0][place] <= np.log1p(SLOWDOWN) or settings[place] == 1.0]
    return min(kept, key=lambda place: curves[0][place] + curves[1][place])


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where programs ended up."""

    saved: list[float]
    oracle: list[float]
    slowed: list[float]
    trials: list[int]

    @property
    def share(self) -> float:
        return 100 * sum(self.saved) / sum(self.oracle)

    @property
    def worst(self) -> float:
        return 100 * max(self.slowed)


def outcome(cases: Sequence[Case], place_of: Callable[[Case], tuple[int, int]]) -> Outcome:
    saved, oracle, slowed, trials = [], [], [], []
    for case in cases:
        time, power = case.truth
        place, tried = place_of(case)
        best = chosen(case.truth, case.book.settings)
        saved.append(float(1 - np.exp(time[place] + power[place])))
        oracle.append(float(1 - np.exp(time[best] + power[best])))
        slowed.append(float(np.exp(time[place]) - 1))
        trials.append(tried)
    return Outcome(saved, oracle, slowed, trials)


def refused(case: Case) -> bool:
    """Whether nothing in the record is near: then a setting is sought without it."""
    found = recognise(case.book.points, Fingerprint(features=case.point.features), [case.probe])
    return not found.recognised


def settled(case: Case, refusals: Mapping[str, bool], trials: int = TRIALS) -> tuple[int, int]:
    response = case.point.response
    assert response is not None
    if refusals[case.point.name]:
        return halved(case, trials)
    end = settle(
        case.book,
        Fingerprint(features=case.point.features),
        case.probe,
        partial(measured, response),
        slowdown=SLOWDOWN,
        trials=trials,
    )
    return int(np.argmin(np.abs(np.array(case.book.settings) - end.setting))), end.trials


def halved(case: Case, looks: int = TRIALS + 1) -> tuple[int, int]:
    """As many looks as we have with the probe, none of them led by a record: halving what is left."""
    assert case.point.response is not None
    run = partial(measured, case.point.response)
    end = settle_unguided(case.book.settings, run, slowdown=SLOWDOWN, looks=looks)
    return int(np.argmin(np.abs(np.array(case.book.settings) - end.setting))), end.trials


def held(case: Case) -> tuple[float, float]:
    """Share of settings, in per cent, at which the truth lies in the interval: of time and of power."""
    guess, _, _ = guess_response(case.book, case.point.features, [case.probe])
    settings = np.array(case.book.settings)
    open_to_doubt = np.abs(settings - 1) > SAME
    shares = []
    for intervals, true in zip((guess.time_ratio, guess.power_ratio), np.exp(case.truth), strict=True):
        inside = [one.low <= value <= one.high for one, value in zip(intervals, true, strict=True)]
        shares.append(100 * float(np.mean(np.array(inside)[open_to_doubt])))
    return shares[0], shares[1]


def doubt_rows(sweep: Sweep) -> list[Row]:
    """How often intervals of nine in ten hold the truth of a left-out program."""
    shares = np.array([held(case) for case in cases_of(sweep)])
    test = f"{sweep.name}: curve of a left-out program"
    return [
        Row(test=test, measure=f"{name} lies in its 90 % interval", ours=float(shares[:, at].mean()), count=len(shares))
        for at, name in enumerate(("time", "power"))
    ]


def response_rows(sweep: Sweep, *, bars: bool) -> list[Row]:
    """Errors, and what a 5 % limit makes of them."""
    cases = cases_of(sweep)
    errors = {name: np.array([error(case, method(case)) for case in cases]) for name, method in METHODS.items()}
    mine = np.array([error(case, ours(case)) for case in cases])
    others = [{name: float(one[:, at].mean()) for name, one in errors.items()} for at in (0, 1)]
    at = f"probe at {cases[0].probe.setting:.2f}"
    once = outcome(cases, lambda case: (chosen(ours(case), case.book.settings), 0))
    floor = outcome(cases, lambda case: (chosen(own_smooth_curve(case), case.book.settings), 0))
    refusals = {case.point.name: refused(case) for case in cases}
    looked = outcome(cases, partial(settled, refusals=refusals))
    plain = outcome(cases, halved)
    ends = {"after one probe": once, "own curve without noise": floor, "halving, no record": plain}
    by_looks = {
        looks: (
            outcome(cases, partial(settled, refusals=refusals, trials=looks - 1)).share,
            outcome(cases, partial(halved, looks=looks)).share,
        )
        for looks in (2, 3, 4)
    }
    ends |= {
        name: outcome(cases, lambda case, method=METHODS[name]: (chosen(method(case), case.book.settings), 0))  # type: ignore[misc]
        for name in ("mean curve", "not probed", "5 by probe")
    }
    test = f"{sweep.name}: curve of a left-out program"
    limit = f"{sweep.name}: {SLOWDOWN:.0%} slowdown limit"
    tried = f"{np.mean(looked.trials):.1f} trials after the probe, {sum(refusals.values())} refused"
    return [
        Row(test=test, measure=f"time error, {at}", ours=float(mine[:, 0].mean()), at_most=3.0 if bars else None,
            others=others[0], count=len(cases)),
        Row(test=test, measure=f"power error, {at}", ours=float(mine[:, 1].mean()), at_most=4.0 if bars else None,
            others=others[1], count=len(cases)),
        Row(test=limit, measure="share of the oracle's saving", ours=looked.share, at_least=95.0 if bars else None,
            others={name: one.share for name, one in ends.items()}, count=len(cases), note=tried),
        Row(test=limit, measure="slowdown of the worst program", ours=looked.worst, at_most=7.0 if bars else None,
            others={name: one.worst for name, one in ends.items()}, count=len(cases)),
        *(
            Row(test=limit, measure=f"share after {looks} looks, probe and all", ours=mine_then,
                others={"halving, no record": halving}, count=len(cases))
            for looks, (mine_then, halving) in by_looks.items()
        ),
    ]  # fmt: skip
