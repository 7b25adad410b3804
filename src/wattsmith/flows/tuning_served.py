"""Trials of a command that serves: it is left to work for a while, and its metrics are read where it serves them."""

import http.client
import json
import math
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.flows.tuning_process import QUERIES, end_gently, ends_within, filled, judged, running, why_it_failed
from wattsmith.measure.session import Session
from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Failed, Level
from wattsmith.tune.goals import is_number

STARTS_WITHIN_S = 120.0  # where no timeout is given
LOOK_EVERY_S = 0.1
ANSWERS_WITHIN_S = 10.0
GRACE_S = 5.0  # to end by itself, before it is killed
MOST_BYTES = 16 << 20
# As Prometheus wants names to end, and as they end here.
_ENDINGS = {"_seconds": "_s", "_joules": "_j", "_watts": "_w", "_hertz": "_hz", "_total": ""}
_SAMPLE = re.compile(r'([A-Za-z_:][\w:]*)(?:\{(?:quantile="([\d.]+)",?)?\})?\s+(\S+)(?:\s+-?\d+)?')


@dataclass(frozen=True, slots=True, kw_only=True)
class Serves:
    """Where a command serves its metrics, and for how long it is left to work in a trial."""

    url: str  # {name} stands for a level there too
    window_s: float = 10.0

    def __post_init__(self) -> None:
        if not re.match(r"https?://", self.url):
            raise BadInput(f"metrics are served at an address such as http://localhost:8000/metrics, got {self.url!r}")
        if not 0 < self.window_s < math.inf:
            raise BadInput(f"a command is left to serve for a positive time, got {self.window_s} s")


def tried_serving(
    command: Sequence[str],
    setting: Mapping[str, Level],
    session: Session,
    serves: Serves,
    timeout_s: float | None,
) -> Mapping[str, float] | Failed:
    """What came of COMMAND at SETTING, which serves its metrics once it is ready, within TIMEOUT_S, and goes on then.

    What it counts as "queries" from the beginning of the window to its end is what time and energy are told per.
    """
    url = filled(serves.url, setting)
    if _answer(url) is not None:
        raise BadInput(f"something answers at {url} before the command is started; end it, or serve elsewhere")
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        running(command, setting, out, err) as process,
    ):
        began = _first_answer(url, process, STARTS_WITHIN_S if timeout_s is None else timeout_s)
        if process.poll() is not None:
            return Failed(why=f"it ended before it served anything: {why_it_failed(process, err)}")
        if began is None:
            return Failed(why=f"no metrics were served at {url} in time")
        with session.measure("trial") as window:
            ended = ends_within(process, serves.window_s)
        if ended:
            return Failed(why=f"it ended while it served: {why_it_failed(process, err)}")
        answer = _answer(url)
        end_gently(process, GRACE_S)
    if answer is None:
        return Failed(why=f"no metrics were served at {url} any more")
    metrics = served_metrics(answer)
    before = served_metrics(began).get(QUERIES)
    if is_number(metrics.get(QUERIES)) and is_number(before):
        metrics[QUERIES] -= before
    return judged(metrics, window.result())


def _first_answer(url: str, process: subprocess.Popen[bytes], within_s: float) -> str | None:
    """What URL first answers; None: nothing, before PROCESS ended or WITHIN_S passed."""
    deadline_s = time.monotonic() + within_s
    while process.poll() is None and time.monotonic() < deadline_s:
        answer = _answer(url)
        if answer is not None:
            return answer
        ends_within(process, LOOK_EVERY_S)
    return None


def _answer(url: str) -> str | None:
    """What URL answers, as text; None: nothing, or not with success."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # what is tuned runs here, not behind a proxy
    try:
        with direct.open(url, timeout=ANSWERS_WITHIN_S) as response:
            return str(response.read(MOST_BYTES).decode(errors="replace"))
    except (OSError, http.client.HTTPException, ValueError):
        return None


def served_metrics(text: str) -> dict[str, Any]:
    """Metrics out of TEXT: a JSON object, or what Prometheus reads.

    Of the latter `latency_seconds{quantile="0.99"}` is latency_p99_s, and `queries_total` is queries; what bears other
    labels is passed over.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return {str(name): value for name, value in found.items()}
    metrics = {}
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line.strip())
        if sample is not None:
            name, quantile, value = sample.groups()
            try:
                metrics[_our_name(name, quantile)] = float(value)
            except ValueError:
                continue
    return metrics


def _our_name(name: str, quantile: str | None) -> str:
    ending = next((one for one in _ENDINGS if name.endswith(one)), "")
    percentile = "" if quantile is None else f"_p{100 * float(quantile):g}"
    return name.removesuffix(ending) + percentile + _ENDINGS.get(ending, "")
