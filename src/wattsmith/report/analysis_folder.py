"""A folder of results with their logs, as MLPerf publishes them: each run worked out again from its samples."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wattsmith.report.analysis import Efficiency, Result, Work
from wattsmith.report.formats.lines import Unread
from wattsmith.report.formats.mllog import LogEvent, log_events
from wattsmith.report.formats.spl import spl_lines
from wattsmith.report.formats.stamps import stamp_s
from wattsmith.report.window import (
    LoadWindow,
    Scenario,
    inference_metric,
    queries_at_rate,
    scenario_called,
    window_power,
)
from wattsmith.terms.errors import BadInput, BadTerm

KEYS = frozenset(
    {
        *("power_begin", "power_end", "effective_scenario", "result_validity", "result_query_count"),
        *("result_samples_per_second", "result_completed_samples_per_sec", "result_qps_with_loadgen_overhead"),
        *("result_scheduled_samples_per_sec", "result_completed_tokens_per_second", "result_tokens_per_second"),
    }
)
LATER = ("v3.1", "v4.0", "v4.1", "v5.0", "v5.1")  # rounds that drop failed readings
MOST_SYSTEM_BYTES = 1 << 20


def read_folder(folder: Path) -> tuple[list[Result], list[str]]:
    """Every power result below FOLDER that can be read, and why the others cannot."""
    results, unread = [], []
    for place in find_results(folder):
        try:
            results.append(read_result(place, folder))
        except (BadInput, BadTerm) as odd:
            unread.append(f"{place.relative_to(folder)}: {odd}")
    return results, unread


def find_results(folder: Path) -> Iterator[Path]:
    """The folders below that hold run_1/spl.txt, in order. Links to other folders are not followed."""
    for place, folders, files in os.walk(folder, followlinks=False):
        folders.sort()
        if Path(place).name == "run_1" and "spl.txt" in files:
            yield Path(place).parent


def read_result(place: Path, root: Path) -> Result:
    """The result in PLACE, whose folders above tell whose it is. Raises BadInput that says what is wrong."""
    home = root.resolve()
    for name in ("run_1/spl.txt", "run_1/mlperf_log_detail.txt"):
        if home not in (place / name).resolve().parents:
            raise BadInput(f"{name} is a link that leaves the folder")
    whose = _whose(place, root)
    values = _values(place / "run_1" / "mlperf_log_detail.txt")
    try:
        shift_s = _shift_s(place, whose["round"])
        window = LoadWindow(
            begin_s=stamp_s(str(values["power_begin"])) + shift_s[0],
            end_s=stamp_s(str(values["power_end"])) + shift_s[0],
        )
    except KeyError as missing:
        raise BadInput(f"LoadGen's log has no {missing.args[0]}") from missing
    except ValueError as odd:
        raise BadInput(f"power_begin or power_end makes no sense: {odd}") from odd
    samples = (
        (sample.time_s + shift_s[1], sample.power_w)
        for sample in spl_lines(place / "run_1" / "spl.txt")
        if not isinstance(sample, Unread)
    )
    power = window_power(samples, window, drop_non_positive=whose["round"] in LATER or whose["round"] == "")
    if power.mean_w is None or power.mean_w <= 0:
        raise BadInput(
            f"no valid power sample lies inside of the window of {window.duration_s:.3g} s; measure for longer, or "
            "sample more often (`wattsmith report run --duration 60s --period 1s`)"
        )
    run = scenario_called(str(values.get("effective_scenario", whose["scenario"])))
    published = scenario_called(whose["scenario"]) if whose["scenario"] else run
    queries = _queries(values, window)
    metric = inference_metric(published, run, power.mean_w, window.duration_s, queries)
    rate = _rate(values, run)
    per_joule = (
        published.samples_per_query / metric.energy_per_query_j
        if metric.energy_per_query_j
        else None
        if rate is None
        else rate / power.mean_w
    )
    system = _system(place, root, whose["system"])
    accelerators = _whole(system.get("accelerators_per_node"))
    return Result(
        round=whose["round"],
        division=whose["division"],
        submitter=whose["submitter"],
        system=whose["system"],
        system_name=str(system.get("system_name") or whose["system"]),
        category=str(system.get("system_type") or ""),
        model=whose["model"],
        scenario=published.lower(),
        scenario_run=run.lower(),
        window_s=window.duration_s,
        samples=power.samples,
        invalid_samples=power.invalid,
        power_w=power.mean_w,
        power_min_w=power.min_w,
        power_max_w=power.max_w,
        power_spread_w=None,
        power_factor_ratio=None,
        queries=None if queries is None else round(queries),
        metric=metric.value,
        metric_unit=metric.unit,
        efficiency=None if not per_joule else Efficiency(per_joule=per_joule, work=Work.SAMPLES),
        samples_per_s=rate,
        tokens_per_s=_number(values.get("result_tokens_per_second", values.get("result_completed_tokens_per_second"))),
        published_figure=None,
        published_figure_units="",
        published_performance=None,
        published_performance_units="",
        ranging_power_w=None,
        longest_gap_s=power.largest_gap_s,
        clock_skew_s=None,
        uncertain_samples=None,
        accelerator=str(system.get("accelerator_model_name") or ""),
        accelerators=None if not accelerators else accelerators * (_whole(system.get("number_of_nodes")) or 1),
    )


def _whose(place: Path, root: Path) -> dict[str, str]:
    """Round, division, submitter, system, model and scenario, as far as the folders tell."""
    parts = (root.name, *place.relative_to(root).parts)
    told = dict.fromkeys(("round", "division", "submitter", "system", "model", "scenario"), "")
    inside = list(parts[:-1] if parts[-1] == "performance" else parts)
    if "results" in inside:
        at = len(inside) - 1 - inside[::-1].index("results")
        for name, part in zip(("system", "model", "scenario"), inside[at + 1 : at + 4], strict=False):
            told[name] = part
        told["submitter"] = inside[at - 1] if at > 0 else ""
        told["division"] = inside[at - 2] if at > 1 else ""
        inside = inside[: max(0, at - 2)]
    else:
        told["system"] = place.name
    for part in inside:
        for name in ("v1.0", "v1.1", "v2.0", "v2.1", "v3.0", "v3.1", "v4.0", "v4.1", "v5.0", "v5.1"):
            if name in part:
                told["round"] = name
    return told


def _values(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for event in log_events(path, None, KEYS):
        if isinstance(event, LogEvent):
            values.setdefault(event.key, event.value)
    return values


def _shift_s(place: Path, round_name: str) -> tuple[float, float]:
    """Seconds to add to LoadGen's times and the analyzer's: v1.0 wrote local ones."""
    if round_name != "v1.0":
        return 0.0, 0.0
    both = [_json(place / "power" / name).get("timezone") for name in ("client.json", "server.json")]
    client_s, server_s = (_number(one) or 0.0 for one in both)
    return client_s, server_s


def _queries(values: Mapping[str, Any], window: LoadWindow) -> float | None:
    count = _number(values.get("result_query_count"))
    rate_hz = _number(values.get("result_qps_with_loadgen_overhead"))
    return queries_at_rate(rate_hz, window.duration_s) if count is None and rate_hz is not None else count


def _rate(values: Mapping[str, Any], run: Scenario) -> float | None:
    """Samples a second, where the scenario has such a result."""
    for key in ("result_samples_per_second", "result_completed_samples_per_sec", "result_scheduled_samples_per_sec"):
        found = _number(values.get(key))
        if found is not None and not run.is_stream:
            return found
    return None


def _system(place: Path, root: Path, name: str) -> Mapping[str, Any]:
    """The description of the system, from the folder `systems` beside `results`; {} when there is none."""
    for above in place.parents:
        if above.name == "results":
            return _json(above.parent / "systems" / f"{name}.json")
        if above == root:
            break
    return {}


def _json(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MOST_SYSTEM_BYTES:
            return {}
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # a result may come without a description of its system
    return found if isinstance(found, dict) else {}


def _number(found: Any) -> float | None:
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)


def _whole(found: Any) -> int | None:
    try:
        return int(str(found))
    except ValueError:
        return None
