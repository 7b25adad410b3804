"""Which setting to run at, within a limit on slowdown; and what to do once its own figures are in.

The setting that a curve recommends is run, and what it gives is one more probe. A setting that was measured to hold is
kept unless another promises to need clearly less; one that broke the limit is left, and so is all below it. Between the
two the rest is halved, as a curve may be wrong. Every figure beyond the first probe comes from running the job, so that
looking costs no work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattsmith.match.curves import CurveBook, guess_response
from wattsmith.terms.telemetry import Fingerprint, Probe, ResponseGuess

GAIN = 0.003  # of the energy: less is not worth a look, which costs next to nothing
TRIALS = 5
SAME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Where a job ended up."""

    setting: float
    trials: int  # settings that were run after the probe
    energy_ratio: float  # as measured where it was, else as expected
    time_ratio: float
    measured: bool  # False: expected alone


def choose_setting(guess: ResponseGuess, slowdown: float, *, cautious: bool = False) -> int:
    """The place of the setting with least energy among those that keep SLOWDOWN (0.05: 5 % more time).

    CAUTIOUS asks that of the upper end of the interval. The usual setting always keeps it.
    """
    kept = [place for place, time in enumerate(guess.time_ratio)
            if (time.high if cautious else time.value) <= 1 + slowdown or guess.settings[place] == 1.0]  # fmt: skip
    kept = kept or [guess.at(1.0)]
    return min(kept, key=lambda place: guess.time_ratio[place].value * guess.power_ratio[place].value)


def settle(
    book: CurveBook,
    fingerprint: Fingerprint,
    probe: Probe,
    run: Callable[[float], Probe],
    *,
    slowdown: float,
    trials: int = TRIALS,
) -> Settled:
    """Find a setting for a client: RUN gives what running at a setting gave, over the usual one.

    With no TRIALS, the first choice stands as it is.
    """
    probes = [probe]
    broken_at = probe.setting if _breaks(probe, slowdown) else 0.0
    held: list[Probe] = [] if _breaks(probe, slowdown) or probe.power_ratio is None else [probe]
    for _ in range(max(trials, 1)):
        guess, _, _ = guess_response(book, fingerprint.features, probes, with_doubt=False)
        if not trials:
            return _expected(guess, _next(guess, held, broken_at, slowdown))
        setting = _to_try(guess, held, broken_at, slowdown)
        if setting is None:
            break
        seen = run(setting)
        probes.append(seen)
        if _breaks(seen, slowdown):
            broken_at = max(broken_at, seen.setting)
        elif seen.power_ratio is not None:
            held.append(seen)
    best = min(held, key=_energy, default=None)
    if best is None or _energy(best) >= 1.0:
        return Settled(setting=1.0, trials=len(probes) - 1, energy_ratio=1.0, time_ratio=1.0, measured=True)
    return _measured(best, len(probes) - 1)


def _expected(guess: ResponseGuess, place: int) -> Settled:
    time = guess.time_ratio[place].value
    energy = time * guess.power_ratio[place].value
    return Settled(setting=guess.settings[place], trials=0, energy_ratio=energy, time_ratio=time, measured=False)


def _to_try(guess: ResponseGuess, held: Sequence[Probe], broken_at: float, slowdown: float) -> float | None:
    """The next setting to run; None: what is held is as good as what could be found."""
    place = _next(guess, held, broken_at, slowdown)
    best = min(held, key=_energy, default=None)
    kept_energy_ratio = 1.0 if best is None else _energy(best)
    expected = guess.time_ratio[place].value * guess.power_ratio[place].value
    if guess.settings[place] != 1.0 and expected < (1 - GAIN) * kept_energy_ratio:
        return guess.settings[place]
    return _halfway(guess, best, broken_at, kept_energy_ratio)


def _halfway(guess: ResponseGuess, best: Probe | None, broken_at: float, kept_energy_ratio: float) -> float | None:
    """Between what holds and what broke, where the curve may be wrong: worth a look if it might cost no more time."""
    upper = 1.0 if best is None else best.setting
    between = [place for place, one in enumerate(guess.settings) if broken_at + SAME < one < upper - SAME]
    if not between:
        return None
    place = between[len(between) // 2]
    as_fast = 1.0 if best is None or best.time_ratio is None else best.time_ratio
    return guess.settings[place] if as_fast * guess.power_ratio[place].value < (1 - GAIN) * kept_energy_ratio else None


def settle_unguided(
    settings: Sequence[float], run: Callable[[float], Probe], *, slowdown: float, looks: int = TRIALS + 1
) -> Settled:
    """A setting found by looking alone, for a program that nothing in the record is like: what is left is halved."""
    low, high = 0, len(settings) - 1
    held: list[Probe] = []
    tried = 0
    while tried < looks and high - low > 1:
        place = (low + high) // 2
        seen = run(settings[place])
        tried += 1
        if _breaks(seen, slowdown):
            low = place
        else:
            high = place
            held += [seen] if seen.power_ratio is not None else []
    best = min(held, key=_energy, default=None)
    if best is None or _energy(best) >= 1.0:
        return Settled(setting=1.0, trials=tried, energy_ratio=1.0, time_ratio=1.0, measured=True)
    return _measured(best, tried)


def _measured(one: Probe, trials: int) -> Settled:
    time = one.time_ratio or 1.0
    return Settled(setting=one.setting, trials=trials, energy_ratio=_energy(one), time_ratio=time, measured=True)


def _next(guess: ResponseGuess, held: Sequence[Probe], broken_at: float, slowdown: float) -> int:
    """The best place that is above what broke the limit. What was run counts as it was, not as expected."""
    seen = {guess.at(one.setting): one for one in held}
    kept = []
    for place, setting in enumerate(guess.settings):
        time = guess.time_ratio[place].value
        if place in seen or setting == 1.0 or (setting > broken_at + SAME and time <= 1 + slowdown):
            energy = _energy(seen[place]) if place in seen else time * guess.power_ratio[place].value
            kept.append((energy, place))
    return min(kept)[1]


def _breaks(one: Probe, slowdown: float) -> bool:
    """Without progress nobody knows, and then it counts as broken."""
    return one.time_ratio is None or one.time_ratio > 1 + slowdown


def _energy(one: Probe) -> float:
    return (one.time_ratio or 1.0) * (one.power_ratio or 1.0)
