"""How long a step takes, seen in the swing of power, utilisation or memory activity.

The period is where the autocorrelation has its first high peak; it counts only if the signal repeats after two of them
as well, and if it lies well above what the sensor resolves.
"""

from typing import Any

STRONG = 0.35  # correlation after one period
STRONG_AFTER_TWO = 0.25
READINGS_PER_PERIOD = 4.0  # of the sensor, at least
PERIODS = 4.0  # that must have been seen
FLAT = 0.01  # swing over mean below which nothing is sought


def step_period_s(time_s: Any, values: Any, sensor_s: float | None = None) -> float | None:
    """The period of VALUES in seconds; None when none is sure."""
    import numpy as np

    times, signal = np.asarray(time_s, dtype=float), np.asarray(values, dtype=float)
    if len(times) < 16 or times[-1] <= times[0]:
        return None
    mean = float(np.mean(signal))
    if mean == 0 or float(np.std(signal)) < FLAT * abs(mean):
        return None
    spacing_s = max(float(np.median(np.diff(times))), (times[-1] - times[0]) / 20_000)
    even_s = np.arange(times[0], times[-1], spacing_s)
    even = np.interp(even_s, times, signal)
    even = even - np.polyval(np.polyfit(even_s - even_s[0], even, 1), even_s - even_s[0])
    likeness = _autocorrelation(even)
    finest_s = READINGS_PER_PERIOD * max(spacing_s, sensor_s or 0.0)
    least = int(np.ceil(finest_s / spacing_s))
    most = int(len(even) / PERIODS)
    return _first_peak(likeness, least, most, spacing_s)


def _autocorrelation(even: Any) -> Any:
    """Likeness of a signal with itself later, from 1 on; by spectrum, which is quick."""
    import numpy as np

    count = len(even)
    spectrum = np.fft.rfft(even, 2 * count)
    product = np.fft.irfft(np.abs(spectrum) ** 2)[:count]
    product = product / np.arange(count, 0, -1)  # later lags have fewer pairs
    return product / product[0] if product[0] > 0 else np.zeros(count)


def _first_peak(likeness: Any, least: int, most: int, spacing_s: float) -> float | None:
    import numpy as np

    if most <= max(least, 2):
        return None
    inner = likeness[1:-1]
    peaks = np.flatnonzero((inner >= likeness[:-2]) & (inner > likeness[2:])) + 1
    peaks = peaks[(peaks >= 2) & (peaks <= most)]
    peaks = peaks[likeness[peaks] >= STRONG]
    if not len(peaks):
        return None
    # Several harmonics are high; the first that comes near the highest is the period itself.
    high = 0.85 * float(np.max(likeness[peaks]))
    place = int(peaks[likeness[peaks] >= high][0])
    if place < least:
        return None  # and not a multiple of it either, which is high as well
    around = likeness[max(0, 2 * place - max(1, place // 8)) : 2 * place + max(1, place // 8) + 1]
    if not len(around) or float(np.max(around)) < STRONG_AFTER_TWO:
        return None
    left, top, right = (float(one) for one in likeness[place - 1 : place + 2])
    bend = left - 2 * top + right
    return float((place + (0.5 * (left - right) / bend if bend else 0.0)) * spacing_s)
