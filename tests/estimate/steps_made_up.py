"""Steps made up for tests: so many operations and bytes of so many classes."""

from dataclasses import replace

from wattsmith.estimate.costs import Regime, Step, Timed
from wattsmith.estimate.sheets import DataSheet, sheet_of
from wattsmith.terms.run import OperatorCount, Structure

PLAIN = replace(
    sheet_of("A100"),
    name="plain",
    peak_flops={"fp32": 1e13, "bf16": 1e14},
    bandwidth=1e12,
    base_clock_hz=1e9,
    boost_clock_hz=1e9,
)  # one operation in 0.1 ps, one byte in 1 ps


def structure(launches: int = 100, parameter_bytes: int = 10**6, input_bytes: int = 10**6, **classes) -> Structure:
    """CLASSES: by name, the operations and bytes of each, as a pair."""
    operators = {
        name.replace("_", "-"): OperatorCount(calls=10, flops=flops, moved_bytes=moved)
        for name, (flops, moved) in classes.items()
    }
    return Structure(
        parameters=parameter_bytes // 4,
        parameter_bytes=parameter_bytes,
        input_bytes=input_bytes,
        flops=sum(one.flops for one in operators.values()),
        moved_bytes=sum(one.moved_bytes for one in operators.values()),
        launches=launches,
        peak_bytes=0,
        operators=operators,
    )


def step(device: DataSheet = PLAIN, regime: Regime | None = None, **made) -> Step:
    return Step(structure=structure(**made), device=device, regime=regime or Regime())


def family_of_steps(
    group: str, heavy: float, count: int, device: DataSheet = PLAIN, slower: float = 1.0
) -> list[Timed]:
    """Networks of growing size, HEAVY times as much product as light work, on a device at half its peaks."""
    found = []
    for at in range(count):
        size = 1.3**at
        flops, moved = 1e11 * size * heavy, 1e10 * size
        one = step(device, matmul=(flops, moved / 10), elementwise=(0.0, moved))
        busy_s = 2 * (flops / 1e13 + 1.1 * moved / 1e12) + 100 * 1e-5
        found.append(Timed(step=one, step_s=busy_s * slower, group=group, name=f"{group} {at}"))
    return found


def record(device: DataSheet = PLAIN, slower: float = 1.0) -> list[Timed]:
    """Eight families, from light to heavy."""
    return [row for at in range(8) for row in family_of_steps(f"family {at}", 1.5**at, 8, device, slower)]
