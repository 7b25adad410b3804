"""Which recorded benchmarks a program is most like, what kind of network it seems to be, and when nothing is near.

A record that was taken at one setting is moved to the client's by each benchmark's own curve before they are compared:
power moves with the clock, and without that a program is not even like itself at another clock.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wattsmith.match.composition import counted, likeness
from wattsmith.match.curves import FEWEST_CURVES, asked, at_level, curve_book, guess_response, usable
from wattsmith.match.features import LAYERS, POWER
from wattsmith.match.kinds import kind_votes
from wattsmith.match.nearness import Scale, distances, known_mean, known_variance, scale_of
from wattsmith.terms.errors import BadInput
from wattsmith.terms.telemetry import ACTIVITIES, Benchmark, FamilyGuess, Fingerprint, Match, Neighbour, Probe
from wattsmith.terms.work import Parameter

NEIGHBOURS = 5
QUANTILE = 0.95  # of the distances inside the record, beyond which nothing is near
MOST_APART = 0.25  # half-width of the curve's interval, on average, beyond which it says nothing
AT_ANOTHER_SETTING = 0.02  # by which the client's clock differs from the usual one before power is moved
SOFTEN = 0.1  # of the usual distance, so that one that is right on does not drown the others
MOVING = ("power_mean", "power_p5", "power_p50", "power_p95")  # with the clock
ROOTED = tuple(name.removesuffix("_ratio") for name in ACTIVITIES)  # small shares differ more than large ones
FEWEST_FEATURES = 2
ENOUGH_COUNTERS = 3
BLURRING = (*POWER, "busy", "memory_busy")
STEADY = 0.05  # of a feature's variance over programs: what scatters less than that is steady enough
FEWEST_MEMBERS = 8  # of a family, before its own spread says how far is far


@dataclass(frozen=True, slots=True)
class Gallery:
    """Benchmarks on the scale of the record, for a certain set of features."""

    points: tuple[Benchmark, ...]
    names: tuple[str, ...]
    scale: Scale
    features: Any
    weights: Any
    usual: float  # distance of a program from the nearest of another group; the unit of distance
    farthest: float  # the quantile of those, in that unit
    farthest_by_family: Mapping[str, float]  # the same among members of one family, where there are enough
    within: float | None  # the quantile of distances between points of one group, in that unit


def gallery_of(points: Sequence[Benchmark], names: Sequence[str], setting: float = 1.0) -> Gallery:
    """POINTS as they would look at SETTING, compared by the features NAMES."""
    import numpy as np

    moved = [at_setting(point, setting) for point in points]
    raw = np.array([row_of(point.features, names) for point in moved])
    scale = scale_of(raw)
    scaled = scale.applied(raw)
    groups = [point.group for point in points]
    weights = _steady_weights(scaled, groups)
    apart = distances(scaled, scaled, weights)
    codes = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    numbers = np.array([codes[group] for group in groups])
    other = numbers[:, None] != numbers[None, :]
    nearest = np.where(other, apart, np.inf).min(axis=1)
    nearest = nearest[np.isfinite(nearest)]
    usual = float(np.median(nearest)) if len(nearest) else 1.0
    usual = usual or 1.0
    same = ~other & ~np.eye(len(groups), dtype=bool)
    own = np.where(same, apart, np.inf).min(axis=1)
    own = own[np.isfinite(own)]
    return Gallery(
        points=tuple(moved),
        names=tuple(names),
        scale=scale,
        features=scaled,
        weights=weights,
        usual=usual,
        farthest=float(np.quantile(nearest, QUANTILE)) / usual if len(nearest) else 1.0,
        farthest_by_family=_spreads(points, np.where(other, apart, np.inf) / usual),
        within=float(np.quantile(own, QUANTILE)) / usual if len(own) else None,
    )


def _spreads(points: Sequence[Benchmark], apart: Any) -> dict[str, float]:
    """How far members of a family are from its next one: some families lie close together, others far apart."""
    import numpy as np

    families = np.array([point.family for point in points])
    spreads = {}
    for family in dict.fromkeys(families):
        members = families == family
        nearest = apart[members][:, members].min(axis=1)
        nearest = nearest[np.isfinite(nearest)]
        if len(nearest) >= FEWEST_MEMBERS:
            spreads[str(family)] = float(np.quantile(nearest, QUANTILE))
    return spreads


def far_from(gallery: Gallery, features: Mapping[str, float | None]) -> Any:
    """How far each benchmark is, in units of the usual distance."""
    import numpy as np

    place = gallery.scale.applied(np.array(row_of(features, gallery.names)))
    return distances(place[None, :], gallery.features, gallery.weights)[0] / gallery.usual


def at_setting(point: Benchmark, setting: float) -> Benchmark:
    """POINT as it would look at SETTING, by its own curve; as it is when it has none or the setting is the usual."""
    import numpy as np

    if point.response is None or abs(setting - 1.0) < AT_ANOTHER_SETTING:
        return point
    at = np.log(point.response.settings)
    factor = math.exp(float(np.interp(math.log(setting), at, np.log(point.response.power_ratio))))
    moved = {name: value * factor for name in MOVING if (value := point.features.get(name)) is not None}
    return replace(point, features={**point.features, **moved})


def row_of(features: Mapping[str, float | None], names: Sequence[str]) -> list[float]:
    """The named features; NaN: not known. Shares of activity by their root, as small ones tell more apart."""
    return [_figure(name, features.get(name)) for name in names]


def shared_names(points: Sequence[Benchmark], features: Mapping[str, float | None]) -> tuple[str, ...]:
    """The features that the client and at least half of the benchmarks have."""
    found = []
    for name, value in features.items():
        if value is not None and 2 * sum(point.features.get(name) is not None for point in points) >= len(points):
            found.append(name)
    return tuple(found)


def telling_names(names: Sequence[str]) -> tuple[str, ...]:
    """Those of NAMES that tell programs apart best. The clock is a setting, not a trait of a program; and where
    activity is counted, power and utilisation only blur it, above all at another setting.
    """
    kept = [name for name in names if name not in ("clock", "memory_clock")]
    if sum(name in ROOTED for name in kept) >= ENOUGH_COUNTERS:
        kept = [name for name in kept if name not in BLURRING]
    return tuple(kept)


def recognise(
    points: Sequence[Benchmark],
    fingerprint: Fingerprint,
    probes: Sequence[Probe] = (),
    *,
    setting: float = 1.0,
    neighbours: int = NEIGHBOURS,
    record: str | None = None,
    simulated: bool = False,
) -> Match:
    """What FINGERPRINT, taken at SETTING, is most like among POINTS; refused when nothing is near."""
    everything = points
    if counters := counted(points, fingerprint.features):
        points = [points[place] for place in counters]  # others lack what tells most
    names = telling_names(shared_names(points, fingerprint.features))
    if not names or len(names) + len(probes) < FEWEST_FEATURES:
        raise BadInput(
            f"the telemetry and the record share {len(names)} features ({', '.join(names) or 'none'}); at least "
            f"{FEWEST_FEATURES} are needed. The client has {', '.join(fingerprint.known) or 'none'}. "
            f"Give what else is known of it: {_what_would_help(fingerprint.known)}"
        )
    gallery = gallery_of(points, names, setting)
    far = far_from(gallery, fingerprint.features)
    order = sorted(range(len(points)), key=lambda place: float(far[place]))
    nearest = float(far[order[0]])
    close = order[:neighbours]
    votes = {place: 1 / (float(far[place]) + SOFTEN) for place in close}
    by_layers = kind_votes(everything, fingerprint.features)
    like = [points[place] for place in close]
    family = _family(points, votes, like) if by_layers is None else _family(everything, by_layers, like)
    response, shares, doubt, farness = _response(everything, fingerprint, probes, setting)
    near = tuple(
        Neighbour(
            name=points[place].name,
            family=points[place].family,
            distance=float(far[place]),
            weight=votes[place] / sum(votes.values()) if shares is None else shares.get(points[place].name, 0.0),
        )
        for place in close
    )
    closest = points[order[0]]
    farthest = gallery.farthest_by_family.get(closest.family, gallery.farthest)
    if (alike := likeness(points, fingerprint.features, QUANTILE)) is not None:
        nearest, farthest, closest = alike.nearest, alike.farthest, points[alike.place]
    # A probe is evidence on the curve itself: then what counts is whether anything reacted like it.
    if farness is not None and any(probe.time_ratio is not None for probe in probes):
        nearest, farthest = farness, 1.0
        alike = None
    refused = _why_refused(nearest, farthest, doubt, closest, by_counters=alike is not None)
    return Match(
        fingerprint=fingerprint,
        neighbours=near,
        family=family,
        response=None if refused else response,
        nearest=nearest,
        farthest_known=farthest,
        refused=refused,
        record=record,
        used=names,
        simulated=simulated,
        notes=_notes(points, fingerprint, probes, response is not None),
    )


def _what_would_help(known: Sequence[str]) -> str:
    ways = {
        "power_mean": "its power and power limit (--power-limit)",
        "busy": "utilisation",
        "progress": "its progress (--steps-per-s, --progress)",
        "conv_calls": "its layers (--model, --layers)",
    }
    return ", ".join(way for name, way in ways.items() if name not in known)


def is_same(gallery: Gallery, nearest: float) -> bool:
    """Whether it is as near as another run of the same program would be; False where that was never seen."""
    return gallery.within is not None and nearest <= gallery.within


def _response(
    points: Sequence[Benchmark], fingerprint: Fingerprint, probes: Sequence[Probe], setting: float
) -> tuple[Any, Any, float | None, float | None]:
    """The blended curve, how much each benchmark counts in it, how wide it is on average, how far the nearest is."""
    curved = [at_setting(point, setting) for point in points if point.response is not None]
    if len(curved) < FEWEST_CURVES:
        return None, None, None, None
    book = curve_book(curved, drawn_ratio=fingerprint.features.get("power_mean"))
    features = {name: value for name, value in fingerprint.features.items() if name not in ("clock", "memory_clock")}
    guess, blender, shares = guess_response(book, features, probes)
    guess = at_level(guess, fingerprint.power_w, setting)
    half = [math.log(one.high / one.value) for one in (*guess.time_ratio, *guess.power_ratio)]
    by_name = {point.name: float(share) for point, share in zip(book.points, shares, strict=True)}
    farness = blender.farness(asked(usable(book, features), features, probes), QUANTILE)
    return guess, by_name, sum(half) / len(half), farness


def _why_refused(
    nearest: float, farthest: float, doubt: float | None, closest: Benchmark, *, by_counters: bool
) -> str | None:
    if nearest > farthest:
        how = (
            "nothing in the record works as it does, by its activity counters"
            if by_counters
            else ("nothing in the record is near")
        )
        return (
            f"{how}: the nearest, {closest.name}, is {nearest:.1f} times the usual distance "
            f"away, and 95 % of its like lie within {farthest:.1f}. Add a point: run the program, or a "
            "synthetic network like it, with `wattsmith record run`"
        )
    if doubt is not None and doubt > MOST_APART:
        return (
            f"the curves of what is near disagree by {100 * doubt:.0f} %: probe the client at another setting, or add "
            "points near it with `wattsmith record run`"
        )
    return None


def _family(points: Sequence[Benchmark], votes: Mapping[int, float], like: Sequence[Benchmark]) -> FamilyGuess:
    """The kind that most VOTES of POINTS are for, with parameters as those have of it that are LIKE the client."""
    total = sum(votes.values())
    shares: dict[str, float] = {}
    for place, vote in votes.items():
        shares[points[place].family] = shares.get(points[place].family, 0.0) + vote / total
    (family, share), *others = sorted(shares.items(), key=lambda one: -one[1])
    of_it = [point for point in like if point.family == family]
    of_it = of_it or [points[place] for place in votes if points[place].family == family]
    return FamilyGuess(family=family, share=share, others=dict(others), parameters=_middle(of_it))


def _middle(points: Sequence[Benchmark]) -> dict[str, Parameter]:
    """Of each parameter that all have: the middle of numbers, on a scale of doublings, or the commonest word."""
    names = set.intersection(*(set(point.parameters) for point in points))
    found: dict[str, Parameter] = {}
    for name in sorted(names):
        values = [point.parameters[name] for point in points]
        if all(isinstance(one, int | float) and not isinstance(one, bool) and one > 0 for one in values):
            middle = math.exp(sum(math.log(float(one)) for one in values) / len(values))
            found[name] = float(middle)
            if all(isinstance(one, int) for one in values):
                found[name] = round(middle)
        else:
            found[name] = Counter(values).most_common(1)[0][0]
    return found


def _notes(
    points: Sequence[Benchmark], fingerprint: Fingerprint, probes: Sequence[Probe], has_curve: bool
) -> tuple[str, ...]:
    notes = list(fingerprint.notes)
    if fingerprint.power_w is not None and all(fingerprint.features.get(name) is None for name in ROOTED):
        notes.append("no activity counters: power and utilisation tell programs apart less well, above all elsewhere")
    if all(fingerprint.features.get(name) is None for name in LAYERS):
        notes.append(
            "its layers are not known, and without them its kind is a guess: say wattsmith.tell_layers() in the "
            "program, or --model"
        )
    if has_curve and not probes:
        notes.append("not probed: the curve rests on likeness alone; a few seconds at another setting make it surer")
    if has_curve and probes and all(probe.time_ratio is None for probe in probes):
        notes.append("the probe has no progress: without steps per second no slowdown can be promised")
    if not has_curve:
        notes.append(
            f"the record was taken at one setting ({len(points)} benchmarks): it tells what it is, not how it reacts"
        )
    return tuple(notes)


def _steady_weights(scaled: Any, groups: Sequence[str]) -> Any:
    """Features that scatter within one program count less; all alike where every program was seen once."""
    import numpy as np

    parts = [rows for rows in _by_group(groups) if len(rows) > 1]
    if not parts:
        return np.ones(scaled.shape[1])
    seen = [scaled[rows] for rows in parts]
    scatter = np.array([np.where(np.isnan(one).all(axis=0), np.nan, known_variance(one)) for one in seen])
    return 1 / (known_mean(scatter) + STEADY)


def _by_group(groups: Sequence[str]) -> list[list[int]]:
    places: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        places.setdefault(group, []).append(row)
    return list(places.values())


def _figure(name: str, value: float | None) -> float:
    if value is None:
        return math.nan
    return math.sqrt(max(value, 0.0)) if name in ROOTED else float(value)
