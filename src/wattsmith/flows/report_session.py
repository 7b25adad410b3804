"""A measured session on this machine: power from a daemon or any meters, load from LoadGen or our own generator."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from wattsmith.flows.report_disclosure import write_disclosure
from wattsmith.flows.report_power import MetersSource, PtdSource, Source
from wattsmith.measure.ntp import clock_offset_s
from wattsmith.measure.ptd import parse_address
from wattsmith.report.analysis import Result
from wattsmith.report.analysis_folder import read_result
from wattsmith.report.checks.findings import Layer, Report, Verdict
from wattsmith.report.checks.judging import judge_inference
from wattsmith.report.disclosure import Disclosure, Figure, disclose_window
from wattsmith.report.session import Session, run_session
from wattsmith.report.session import SessionPlan as SessionPlan
from wattsmith.report.session_load import Loaded, LoadPlan, Work, command_work, generate, has_loadgen, own_logs
from wattsmith.report.tiers import Basis
from wattsmith.report.window import Scenario, scenario_called
from wattsmith.sim.ptd import SimulatedPtd
from wattsmith.terms.clock import RealClock
from wattsmith.terms.errors import BadInput, BadTerm, NotWritten
from wattsmith.terms.quantity import parse_quantity

DAEMON, STAND_IN = "ptd:", "simulated"
DROVE = (
    "report/session.py",
    "report/session_load.py",
    "flows/report_session.py",
    "flows/report_power.py",
    "measure/ptd.py",
    "measure/ntp.py",
)

# Checks that ask for MLPerf's own program files. A session of ours never passes them, which is what tier B says.
OF_THE_WORKFLOW = ("Check client sources checksum", "Check server sources checksum")


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToRun:
    """What to drive, and how."""

    scenario: str = "SingleStream"
    meters: str = "auto"
    plan: SessionPlan = field(default_factory=SessionPlan)
    batch: int = 1
    rate_hz: float | None = None
    loadgen: bool | None = None  # None: where it is installed
    logs: Path | None = None  # the command runs LoadGen itself, and leaves its logs here
    ntp: str | None = None  # a time server to check this clock against; None: it is not checked
    ptd_log: Path | None = None  # the daemon's own log, where it can be read from here
    system: str = "this-machine"
    benchmark: str = "work"

    def __post_init__(self) -> None:
        for name in (self.system, self.benchmark):
            if not name or name.startswith(".") or not all(letter.isalnum() or letter in "._-" for letter in name):
                raise BadInput(f"{name!r} cannot name a folder of results: letters, digits, dots, - and _ can")


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """A session that is over, what it came to, and what may be said of it."""

    session: str
    folder: Path
    result: Result
    generator: str
    is_loadgen: bool
    load_valid: bool
    clock_apart_s: float
    accepted: bool  # by all checks, the strict ones with them
    failed_checks: tuple[str, ...]
    disclosure: Disclosure
    files: tuple[Path, ...]


def run(
    work: Work | Sequence[str], out: Path, how: HowToRun | None = None, tell: Callable[[str], None] = lambda _: None
) -> Driven:
    """Measure WORK, a function of sample numbers or a command, in a session that is written below OUT.

    Its files have the official layout: OUT/results/SYSTEM/BENCHMARK/SCENARIO/performance, and what is to be said of it
    in OUT/measurements. TELL is told how it stands.
    """
    how = how or HowToRun()
    try:
        scenario = scenario_called(how.scenario)
    except BadTerm as unknown:
        raise BadInput(str(unknown)) from unknown
    load = _load(work, scenario, how)
    place = Path(how.system) / how.benchmark / scenario.value
    folder = out / "results" / place / "performance"
    if folder.exists():
        raise NotWritten(f"{folder} is there already; choose another place, so that no result is overwritten")
    with ExitStack() as stack:
        source = _open_source(how, stack)
        session = run_session(
            source,
            load,
            how.plan,
            folder,
            clock=RealClock(),
            sources=_drove(),
            tell=tell,
            offset_s=None if how.ntp is None else partial(clock_offset_s, how.ntp),
        )
    result = read_result(folder, out)
    judged = judge_inference(folder, out, str(place))
    disclosure = _disclose(session, result, source, how, judged)
    files = write_disclosure([disclosure], out / "measurements" / place)
    files += _write_notes(disclosure, out / "measurements" / place)
    testing = session.loads["testing"]
    return Driven(
        session=session.name,
        folder=folder,
        result=result,
        generator=testing.generator,
        is_loadgen=testing.is_loadgen,
        load_valid=testing.valid,
        clock_apart_s=session.clock_apart_s,
        accepted=judged.verdict(Layer.STRICT) is Verdict.ACCEPTED,
        failed_checks=tuple(check.name for check in judged.reasons(Layer.STRICT)),
        disclosure=disclosure,
        files=tuple(files),
    )


def function_called(source: str) -> Work:
    """The function that SOURCE names, "file.py:name" or "package.module:name"."""
    from wattsmith.flows.models.python_source import named_thing

    if ":" not in source:
        raise BadInput(f"{source!r} names no function; write FILE.py:NAME")
    found, _ = named_thing(source)
    if not callable(found):
        raise BadInput(f"{source} is a {type(found).__name__}, not a function that takes a list of sample numbers")
    return found  # type: ignore[no-any-return]


def _load(work: Work | Sequence[str], scenario: Scenario, how: HowToRun) -> Callable[[str, Path], Loaded]:
    if how.logs is not None:
        if callable(work):
            raise BadInput("--logs goes with a command that runs LoadGen itself, not with a function")
        command, logs = list(work), how.logs
        return lambda _, folder: own_logs(command, logs, folder)
    plan = LoadPlan(scenario=scenario, least_duration_s=how.plan.least_duration_s, batch=how.batch, rate_hz=how.rate_hz)
    if not callable(work) and not work:
        raise BadInput("there is no work: give a command after `--`, or a function with --function FILE.py:NAME")
    do = work if callable(work) else command_work(list(work))
    use_loadgen = has_loadgen() if how.loadgen is None else how.loadgen
    return lambda _, folder: generate(do, plan, folder, use_loadgen=use_loadgen)


def _open_source(how: HowToRun, stack: ExitStack) -> Source:
    """The power source that `how.meters` names; STACK closes what it needs."""
    clock, plan = RealClock(), how.plan
    if not how.meters.startswith(DAEMON):
        source: Source = MetersSource(how.meters, plan, clock)
    else:
        address = how.meters.removeprefix(DAEMON)
        if address.partition(":")[0] == STAND_IN:
            power_w = parse_quantity(address.partition(":")[2] or "300W", "power")
            daemon = stack.enter_context(SimulatedPtd(power_w=power_w, ripple_ratio=0.01))
            source = PtdSource("127.0.0.1", daemon.port, plan, clock, log=lambda: list(daemon.log_lines))
        else:
            host, port = parse_address(address)
            source = PtdSource(host, port, plan, clock, log=_log_of(how.ptd_log))
    stack.callback(source.close)
    return source


def _log_of(path: Path | None) -> Callable[[], list[str]] | None:
    if path is None:
        return None
    if not path.is_file():
        raise BadInput(f"there is no log of the power daemon at {path}")

    def read() -> list[str]:
        try:
            return path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as refused:
            raise BadInput(f"the daemon's log {path} cannot be read: {refused.strerror}") from refused

    return read


def _drove() -> Mapping[str, Path]:
    home = Path(__file__).parents[1]
    return {f"wattsmith/{name}": home / name for name in DROVE}


def _disclose(session: Session, result: Result, source: Source, how: HowToRun, judged: Report) -> Disclosure:
    card, testing = session.source, session.loads["testing"]
    window = source.window("testing", result.window_s, result.power_w, result.samples, result.invalid_samples)
    basis = Basis(
        meter=card.kind,
        simulated=card.simulated,
        listed_meter=card.listed,
        loadgen=testing.is_loadgen,
        ranged=True if card.listed is not None else None,
        check_passed=not [one for one in judged.reasons(Layer.OFFICIAL) if one.name not in OF_THE_WORKFLOW],
        window_s=result.window_s,
        samples=result.samples,
        accuracy_ratio=card.accuracy_ratio,
    )
    figures = [
        Figure(name="window of the load", value=result.window_s, unit="s"),
        Figure(name="power by the rules' mean", value=result.power_w, unit="W"),
    ]
    if result.metric_unit != "W":
        figures.append(Figure(name="energy per query", value=result.metric, unit=result.metric_unit))
    if result.efficiency is not None:
        figures.append(Figure(name="efficiency", value=result.efficiency.per_joule, unit=result.efficiency.unit))
    remarks = [
        f"load: {result.scenario_run} by {testing.generator}",
        "client and director ran in one process, on one clock; "
        + ("it was not checked against a time server" if how.ntp is None else f"it was checked against {how.ntp}"),
        *(f"shortened: {what}" for what in how.plan.shortened),
        *([] if testing.valid else ["the load generator itself calls its run INVALID; its summary says why"]),
        *(f"check failed: {check.name}: {check.evidence}" for check in judged.reasons(Layer.STRICT)),
        *([] if result.invalid_samples == 0 else [f"{result.invalid_samples} samples were not valid"]),
    ]
    title, of = f"Session {session.name}", source.window_is_of
    return disclose_window(window, title=title, basis=basis, figures=figures, remarks=remarks, of=of)


def _write_notes(disclosure: Disclosure, folder: Path) -> list[Path]:
    """What the rules want beside a result, for people."""
    meters = "\n".join(
        f"| {one.domain} | {one.name} | {one.source} | "
        f"{'not stated' if one.accuracy_ratio is None else f'{one.accuracy_ratio:.3%}'} |"
        for one in disclosure.instruments
    )
    files = {
        folder / "analyzer_table.md": "| domain | instrument | source | uncertainty |\n|---|---|---|---|\n"
        + meters
        + "\n",
        folder / "power_settings.md": "Power management was left as it was found on this machine.\n",
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return list(files)
