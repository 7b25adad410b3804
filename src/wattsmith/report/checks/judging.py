"""From a folder to a report: the rules of its round, its figures, its checks."""

from pathlib import Path

from wattsmith.report.checks.evidence import Evidence, gather, queries_of
from wattsmith.report.checks.findings import Check, Layer, Outcome, Report
from wattsmith.report.checks.official import official_checks
from wattsmith.report.checks.rounds import ROUNDS, Round, round_called, round_of
from wattsmith.report.checks.strict_records import strict_checks
from wattsmith.report.checks.tiny import judge_tiny
from wattsmith.report.checks.training import judge_training
from wattsmith.report.formats.descriptor import read_descriptor
from wattsmith.report.places import Place
from wattsmith.report.window import Metric, Scenario, inference_metric, scenario_called
from wattsmith.terms.errors import BadInput, BadTerm

LATEST = next(reversed(ROUNDS))


def judge(place: Place, root: Path, round_name: str | None = None) -> Report:
    """The report of one result below ROOT. Never raises for what stands in its files."""
    if place.kind == "training":
        return judge_training(place.path, root, place.name)
    if place.kind == "tiny":
        return judge_tiny(place.path, root, place.name)
    return judge_inference(place.path, root, place.name, round_name)


def judge_inference(folder: Path, root: Path, name: str, round_name: str | None = None) -> Report:
    rules, known_by = _rules(folder, root, round_name)
    found = gather(folder, rules or round_called(LATEST), root)
    checks = [*official_checks(found), *strict_checks(found)]
    if rules is None:
        checks.insert(0, _unknown_round(known_by))
    return Report(
        place=name,
        kind="inference",
        round=rules.name if rules is not None else None,
        round_known_by=known_by,
        figures=inference_figures(found),
        checks=tuple(checks),
        simulated=found.simulated,
        fingerprints=_fingerprints(found),
    )


def _rules(folder: Path, root: Path, round_name: str | None) -> tuple[Round | None, str]:
    if round_name is not None:
        return round_called(round_name), "as asked for"
    session = ""
    for name in ("server.json", "client.json"):
        path = folder / "power" / name
        if root.resolve() not in path.resolve().parents:
            continue
        try:
            session = session or read_descriptor(path).session
        except BadInput:
            continue
    return round_of(folder.resolve().as_posix(), session)


def _unknown_round(why: str) -> Check:
    return Check(
        name="Round",
        layer=Layer.OFFICIAL,
        outcome=Outcome.FAILED,
        evidence=f"which round's rules hold is not known: {why}; those of {LATEST} were taken",
    )


def inference_figures(found: Evidence) -> dict[str, float | int | str | None]:
    """The metric under the round's rule and what it is made of; None where the files do not tell."""
    run = found.runs["run_1"]
    figures: dict[str, float | int | str | None] = {"session": found.session or None}
    if run.spl is None or run.spl.window is None:
        return figures | {"metric": None}
    power = run.spl.window.result()
    metric, why = metric_of(found)
    figures |= {
        "scenario": metric.scenario.value if metric is not None else None,
        "scenario_run": str(run.values.get("effective_scenario", "")) or None,
        "metric": metric.value if metric is not None else None,
        "metric_unit": metric.unit if metric is not None else why,
        "metric_formula": metric.formula if metric is not None else None,
        "power_w": power.mean_w,
        "duration_s": power.duration_s,
        "energy_j": power.energy_j,
        "integrated_j": power.integral_j,
        "samples": power.samples,
        "invalid_samples": power.invalid,
        "coverage_ratio": power.coverage_ratio,
        "longest_gap_s": power.largest_gap_s,
        "queries": queries_of(run, found.rules.counts_by_rate),
        "performance": _performance(found),
    }
    return figures


def metric_of(found: Evidence) -> tuple[Metric | None, str]:
    """The metric, or why there is none. The scenario is that of the folder; MultiStream may be run as SingleStream."""
    run = found.runs["run_1"]
    if run.spl is None or run.spl.window is None or run.window is None:
        return None, run.why_no_window
    mean_w = run.spl.window.result().mean_w
    if mean_w is None:
        return None, "no sample in the window"
    try:
        ran = scenario_called(str(run.values.get("effective_scenario", "")))
        published = _published(found.folder, ran)
        return inference_metric(
            published, ran, mean_w, run.window.duration_s, queries_of(run, found.rules.counts_by_rate)
        ), ""
    except BadTerm as wrong:
        return None, str(wrong)


def _published(folder: Path, ran: Scenario) -> Scenario:
    for part in reversed(folder.resolve().parts[-3:]):
        try:
            return scenario_called(part)
        except BadTerm:
            continue
    return ran


def _performance(found: Evidence) -> str | None:
    values = found.runs["run_1"].summary.values if found.runs["run_1"].summary is not None else {}
    lines = (
        "Samples per second",
        "Completed samples per second",
        "Scheduled samples per second",
        "QPS w/ loadgen overhead",
    )
    return next((f"{values[line]} {line}" for line in lines if line in values), None)


def _fingerprints(found: Evidence) -> dict[str, str]:
    kept = {f"{run}/spl.txt": found.hashes[f"{run}/spl.txt"] for run in ("run_1",) if f"{run}/spl.txt" in found.hashes}
    client = found.client.uuids if found.client is not None else ("", "")
    return kept | ({"session": f"{found.session} {client[0]}"} if client[0] else {})
