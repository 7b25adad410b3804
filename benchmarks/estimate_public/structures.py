"""Structures of public networks, kept as gzipped JSON lines beside this file: one network at one batch a line."""

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from wattsmith.terms.run import OperatorCount, Structure

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A network as somebody ran it."""

    network: str
    batch: int
    size: int  # pixels or tokens along one side
    mode: str = "train"

    @property
    def key(self) -> str:
        return f"{self.network}|{self.batch}|{self.size}|{self.mode}"


def read(name: str) -> dict[str, Structure]:
    """The structures kept under NAME, by the key of their point."""
    with gzip.open(HERE / f"{name}.jsonl.gz", "rt") as lines:
        entries = [json.loads(line) for line in lines]
    return {one["key"]: _structure(one["structure"]) for one in entries if "structure" in one}


def _structure(facts: dict) -> Structure:
    operators = {name: OperatorCount(**counted) for name, counted in facts.pop("operators").items()}
    return Structure(**facts, operators=operators)


def collect(points: Iterable[Point], trace: Callable[[Point], Structure], unpacked: Path, name: str) -> None:
    """Trace what UNPACKED does not hold yet, then keep all of it under NAME. Stopped half-way, it goes on there."""
    before = [json.loads(line) for line in unpacked.read_text().splitlines()] if unpacked.exists() else []
    traced = [one for one in before if "structure" in one]  # what failed is tried again
    done = {one["key"] for one in traced}
    unpacked.write_text("".join(f"{json.dumps(one)}\n" for one in traced))
    with unpacked.open("a") as kept:
        for point in points:
            if point.key in done:
                continue
            print(json.dumps(_entry(point, trace)), file=kept, flush=True)
            done.add(point.key)
    # mtime 0: the same structures give the same file
    with (HERE / f"{name}.jsonl.gz").open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        packed.write("".join(f"{line}\n" for line in sorted(unpacked.read_text().splitlines())).encode())


def _entry(point: Point, trace: Callable[[Point], Structure]) -> dict:
    try:
        return {"key": point.key, "structure": asdict(trace(point))}
    except (
        AttributeError,
        AssertionError,
        IndexError,
        NotImplementedError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as failed:
        return {"key": point.key, "not_traced": f"{type(failed).__name__}: {failed}"[:200]}
