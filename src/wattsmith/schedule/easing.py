"""Predicted curves with the roughness taken out that their own doubt explains.

Power and rate change smoothly with a clock or a limit: a polynomial of low degree between logarithms comes within
two or three per cent of measured ones. A prediction that errs at each setting for itself is rougher than that. By how
much the curves of a fleet scatter around theirs is compared with the stated doubt; as much as it explains is taken out.
So a setting is no longer preferred because it alone is under-estimated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from wattsmith.terms.schedule import Response
from wattsmith.terms.work import Setting

FEWEST = 5  # settings that a curve must have
STRUCTURE = 0.02  # how far, relatively, true values are from the smooth curve anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class Eased:
    """Responses made smoother, and by device the matrix that makes their errors from independent ones."""

    responses: tuple[Response, ...]
    power: tuple[Any, ...]
    rate: tuple[Any, ...]


def eased(responses: Sequence[Response]) -> Eased:
    """RESPONSES with as much of their roughness taken out as their doubt explains."""
    kept: dict[tuple[float, ...], Any] = {}
    hats = [_hat(one, kept) for one in responses]
    powers, power = _smoother(responses, hats, "power_w", [one.doubt.power_ratio for one in responses])
    rates, rate = _smoother(responses, hats, "rate", [one.doubt.time_ratio for one in responses])
    smoother = tuple(
        replace(
            one,
            points=tuple(
                replace(point, power_w=float(power_w), rate=float(each))
                for point, power_w, each in zip(one.points, new_w, new, strict=True)
            ),
        )
        for one, new_w, new in zip(responses, powers, rates, strict=True)
    )
    return Eased(responses=smoother, power=power, rate=rate)


def _turned(settings: Sequence[Setting]) -> str | None:
    """The one knob in which SETTINGS differ, where all have it set; None: there is no such knob."""
    differ = [name for name in Setting.__dataclass_fields__ if len({getattr(one, name) for one in settings}) > 1]
    if len(differ) != 1 or any(getattr(one, differ[0]) is None for one in settings):
        return None
    return differ[0]


def _degree(settings: int) -> int:
    return max(2, min(5, settings // 4))


def _hat(one: Response, kept: dict[tuple[float, ...], Any]) -> Any:
    """The matrix that takes values at the settings to those of their smooth curve; None: it has too few settings."""
    import numpy as np

    settings = [point.setting for point in one.points]
    knob = _turned(settings)
    if knob is None or len(settings) < FEWEST:
        return None
    levels = tuple(getattr(setting, knob) for setting in settings)
    if levels not in kept:
        logs = np.log(levels)
        basis = np.vander((logs - logs.mean()) / np.ptp(logs), _degree(len(logs)) + 1)
        kept[levels] = basis @ np.linalg.pinv(basis)
    return kept[levels]


def _smoother(
    responses: Sequence[Response], hats: Sequence[Any], name: str, doubts: Sequence[float]
) -> tuple[list[Any], tuple[Any, ...]]:
    """By device: its values made smoother, and the matrix of the errors that are left."""
    import numpy as np

    values = [np.array([getattr(point, name) for point in one.points]) for one in responses]
    rough = _roughness(values, hats, doubts)
    smoother, errors = [], []
    for row, hat, doubt in zip(values, hats, doubts, strict=True):
        same = np.eye(len(row))
        if hat is None or doubt == 0:
            smoother.append(row)
            errors.append(doubt * same)
            continue
        # What scatters around smooth curves is errors and structure; only what must be structure is taken for it.
        structure = max(STRUCTURE**2, (rough - 1) * doubt**2)
        error = max(0.0, rough * doubt**2 - structure)
        keep = structure / (structure + error)
        eases = keep * same + (1 - keep) * hat
        smoother.append(np.exp(eases @ np.log(row)))
        # The rest of the doubt moves a whole curve; a device that seems frugal is then given more.
        alike = np.full((len(row), 1), math.sqrt(max(0.0, doubt**2 - error)))
        left = (math.sqrt(error) * eases, (1 - keep) * math.sqrt(structure) * (same - hat), alike)
        errors.append(np.concatenate(left, axis=1))
    return smoother, tuple(errors)


def _roughness(values: Sequence[Any], hats: Sequence[Any], doubts: Sequence[float]) -> float:
    """Squares of what scatters around the smooth curves of a fleet, as a multiple of what its doubt would give.

    Below 1, the errors of a device are alike at all its settings, and none of them is preferred for its error.
    """
    import numpy as np

    squares = explained = 0.0
    for row, hat, doubt in zip(values, hats, doubts, strict=True):
        if hat is not None and doubt > 0:
            logs = np.log(row)
            squares += float(((logs - hat @ logs) ** 2).sum())
            explained += (len(row) - _degree(len(row)) - 1) * doubt**2
    return squares / explained if explained else 1.0
