"""Programs with curves that can be worked out in the head: time 1 + b (1 / s - 1), power r + (1 - r) s."""

import math

from wattsmith.terms.telemetry import Benchmark, Probe, RelativeResponse, Series, Telemetry

SETTINGS = tuple(place / 20 for place in range(8, 21))  # 0.40 … 1.00


def time_at(setting, bound):
    return 1 + bound * (1 / setting - 1)


def power_at(setting, rest):
    return rest + (1 - rest) * setting


def program(name, bound, rest, **features):
    """BOUND: share of its time that goes with the clock; REST: share of its power that does not."""
    return Benchmark(
        name=name,
        group=name,
        family="compute" if bound > 0.5 else "memory",
        features={"sm": bound, "dram": 1 - bound, "occupancy": rest, "power_mean": 1 - rest / 2, **features},
        response=RelativeResponse(
            settings=SETTINGS,
            time_ratio=tuple(time_at(one, bound) for one in SETTINGS),
            power_ratio=tuple(power_at(one, rest) for one in SETTINGS),
        ),
    )


def programs(count=12):
    return [
        program(f"program {place}", place / (count - 1), 0.2 + 0.5 * ((place * 5) % count) / count)
        for place in range(count)
    ]


def probed(point, setting):
    """What POINT gives at SETTING."""
    place = min(range(len(SETTINGS)), key=lambda one: abs(SETTINGS[one] - setting))
    return Probe(
        setting=SETTINGS[place],
        time_ratio=point.response.time_ratio[place],
        power_ratio=point.response.power_ratio[place],
    )


def series(function, length_s=20.0, every_s=0.02, begin_s=0.0):
    times = [begin_s + place * every_s for place in range(round(length_s / every_s))]
    return Series(time_s=tuple(times), values=tuple(function(one - begin_s) for one in times))


def telemetry(power=lambda _: 300.0, length_s=20.0, **more):
    """An idle second or a busy minute of a card with a limit of 500 W."""
    channels = {"power_w": series(power, length_s)} | more.pop("channels", {})
    return Telemetry(series=channels, power_limit_w=500.0, max_clock_hz=2e9, memory_bytes=80 * 2**30, **more)


def wave(low, high, period_s):
    return lambda at_s: low + (high - low) * (0.5 + 0.5 * math.sin(2 * math.pi * at_s / period_s))
