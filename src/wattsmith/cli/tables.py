"""Results as tables for people. They go to standard error where standard output belongs to a command."""

import shlex
from collections.abc import Iterable, Sequence

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from wattsmith.flows.commands import Measured, ProcessUse
from wattsmith.flows.recording import Recorded
from wattsmith.flows.records import Coverage
from wattsmith.terms.energy import DomainEnergy, MeterCard, Source, Window
from wattsmith.terms.machine import Gpu, Machine
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.run import Run, Status

WIDTH_OF_FILES = 120  # where the output is no terminal
NOT_STATED = "not stated by vendor"


def warn(message: str) -> None:
    typer.echo(f"wattsmith: {message}", err=True)


def _console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH_OF_FILES)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=place == 0)
    return table


# ---- machine


def print_machine(machine: Machine) -> None:
    console = _console()
    head = Table.grid(padding=(0, 2))
    for key, value in (
        ("host", machine.hostname),
        ("system", machine.system),
        ("CPU", f"{machine.cpu}, {machine.cpu_count} threads"),
        ("memory", format_quantity(machine.memory_bytes, "memory")),
        ("GPU driver", machine.driver or "none"),
    ):
        head.add_row(key, escape(value))
    console.print(head)
    console.print("\n[bold]Meters that this user may read[/bold]")
    if machine.meters:
        console.print(_meters(machine.meters))
    else:
        console.print("none: energy is unknown on this machine, for the reasons below")
    if machine.gpus:
        console.print("\n[bold]GPUs[/bold]")
        console.print(_gpus(machine.gpus))
    _print_reasons(console, "Missing", machine.missing.items())


def _meters(cards: Sequence[MeterCard]) -> Table:
    table = _table("domain", "meter", "source", "resolution", "read", "accuracy")
    for card in cards:
        table.add_row(
            _marked(card.domain, card.source, card.simulated),
            escape(_plain_name(card.name) if card.note is None else f"{_plain_name(card.name)} ({card.note})"),
            card.source,
            format_quantity(card.resolution_s, "time", 3),
            f"{1 / card.poll_period_s:.3g} times a second",
            _accuracy(card.accuracy_ratio),
        )
    return table


def _gpus(gpus: Sequence[Gpu]) -> Table:
    table = _table("GPU", "name", "memory", "limit", "limit range", "clock", "memory clock")
    for gpu in gpus:
        range_w = gpu.power_limit_range_w
        table.add_row(
            _marked(gpu.domain, None, gpu.simulated),
            escape(f"{_plain_name(gpu.name)}\n{gpu.uuid}"),
            format_quantity(gpu.memory_bytes, "memory"),
            format_quantity(gpu.power_limit_w, "power"),
            "unknown" if range_w is None else " … ".join(format_quantity(w, "power") for w in range_w),
            format_quantity(gpu.max_clock_hz, "frequency"),
            format_quantity(gpu.max_memory_clock_hz, "frequency"),
        )
    return table


def _marked(domain: str, source: Source | None, simulated: bool) -> str:
    marks = (["simulated"] if simulated else []) + (["modelled"] if source == Source.MODELLED else [])
    return domain + "".join(f" [yellow]({mark})[/yellow]" for mark in marks)


def _plain_name(name: str) -> str:
    """The name of a meter beside a domain that is marked already."""
    return name.removesuffix(" (simulated)")


def _accuracy(ratio: float | None) -> str:
    return NOT_STATED if ratio is None else f"± {ratio:.1%}"


# ---- windows


def print_measured(measured: Measured, *, quiet: bool) -> None:
    """The result on standard error; when QUIET, warnings alone."""
    if not quiet:
        console = _console(stderr=True)
        console.print(f"\n[bold]{escape(shlex.join(measured.command))}[/bold]  {_how_it_ended(measured)}")
        _print_window(console, measured.window)
        console.print(f"processes  {_use(measured.use)}")
    timeline = measured.timeline
    if timeline is not None and timeline.failed is not None:
        warn(f"the timeline is incomplete: {timeline.failed} The figures do not depend on it.")
    elif timeline is not None and not quiet:
        typer.echo(f"timeline   {timeline.path}, {timeline.rows} rows", err=True)


def _how_it_ended(measured: Measured) -> str:
    took = format_quantity(measured.window.duration_s, "time")
    if not measured.ended:
        return f"still runs as process {measured.pid}; measured for {took}"
    if measured.exit_code is None:
        return f"process {measured.pid} ended; measured for {took}"
    return f"exit code {measured.exit_code}, {took}"


def print_replayed(windows: Sequence[Window], *, quiet: bool) -> None:
    if quiet:
        return
    console = _console(stderr=True)
    for window in windows:
        took = format_quantity(window.duration_s, "time")
        console.print(f"\n[bold]{escape(window.name)}[/bold]  {window.began_at}, {took}")
        _print_window(console, window)


def _print_window(console: Console, window: Window) -> None:
    console.print()
    if window.domains:
        console.print(_energies(window))
    else:
        console.print("energy  unknown: no meter was found")
    if window.phases:
        console.print()
        console.print(_phases(window))
    _print_reasons(console, "Unknown", [(d.domain, d.why or "") for d in window.domains if d.energy_j is None])
    _print_reasons(console, "To be read with care", _cares(window))
    if window.domains and window.missing:
        names = ", ".join(window.missing)
        console.print(f"\n[bold]Not measured[/bold]  {names}; `wattsmith machine` says why and what to do")
    else:
        _print_reasons(console, "Not measured", window.missing.items())
    console.print()


def _energies(window: Window) -> Table:
    table = _table("domain", "energy", "mean power", "peak power", "source", "resolution", "accuracy", "readings")
    for domain in window.domains:
        mean_w = None if domain.energy_j is None or not window.duration_s else domain.energy_j / window.duration_s
        table.add_row(
            _marked(domain.domain, domain.source, domain.simulated),
            _energy(domain.energy_j, domain.error_j) + ("" if domain.complete else " [yellow]incomplete[/yellow]"),
            # what a lost meter saw, over the whole window, is no mean power
            format_quantity(mean_w if domain.complete else None, "power"),
            format_quantity(domain.peak_w, "power"),
            domain.source,
            format_quantity(domain.resolution_s, "time", 3),
            _accuracy(domain.accuracy_ratio),
            f"{domain.readings}" + (f", {domain.missed} missed" if domain.missed else ""),
        )
    if len(window.domains) > 1:
        table.add_row(
            " + ".join(domain.domain for domain in window.counted)
            + (" [yellow](simulated)[/yellow]" if window.simulated else ""),
            _energy(window.energy_j, window.error_j),
            format_quantity(window.power_w if window.complete else None, "power"),
        )
    return table


def _energy(energy_j: float | None, error_j: float | None) -> str:
    if energy_j is None or error_j is None:
        return "unknown"
    return f"{format_quantity(energy_j, 'energy')} ± {format_quantity(error_j, 'energy', 2)}"


def _phases(window: Window) -> Table:
    domains = list(dict.fromkeys(domain for phase in window.phases for domain in phase.energy_j))
    table = _table("phase", "time", *domains)
    for phase in window.phases:
        energies = (format_quantity(phase.energy_j.get(domain), "energy") for domain in domains)
        table.add_row(escape(phase.name), format_quantity(phase.duration_s, "time"), *energies)
    return table


def _cares(window: Window) -> list[tuple[str, str]]:
    known = [domain for domain in window.domains if domain.energy_j is not None]
    return [(d.domain, why) for d in known for why in (d.why, _disagreement(d)) if why is not None]


def _disagreement(domain: DomainEnergy) -> str | None:
    check = domain.cross_check
    if check is None or check.agrees:
        return None
    return (
        f"over {format_quantity(check.duration_s, 'time')} the energy counter says "
        f"{format_quantity(check.counter_j, 'energy')} and integrated power "
        f"{format_quantity(check.integrated_j, 'energy')}; they should agree within "
        f"{format_quantity(check.joint_error_j, 'energy', 2)}"
    )


def _use(use: ProcessUse) -> str:
    most = "too short to look at" if use.processes is None else f"{use.processes} at once"
    return (
        f"{most} · CPU time {format_quantity(use.cpu_s, 'time', 3)} · "
        f"peak memory {format_quantity(use.peak_memory_bytes, 'memory', 3)} · "
        f"read {format_quantity(use.read_bytes, 'memory', 3)} · "
        f"written {format_quantity(use.written_bytes, 'memory', 3)}"
    )


def _print_reasons(console: Console, title: str, reasons: Iterable[tuple[str, str]]) -> None:
    pairs = list(reasons)
    if not pairs:
        return
    console.print(f"\n[bold]{title}[/bold]")
    table = Table.grid(padding=(0, 2))
    for what, why in pairs:
        table.add_row(escape(what), escape(why))
    console.print(Padding(table, (0, 0, 0, 2)))


# ---- records


def print_recorded(recorded: Recorded) -> None:
    """What a run of the recorder did."""
    progress = recorded.progress
    console = _console(stderr=True)
    passed_over = progress.done - progress.measured - progress.failed
    inside = progress.inside_s / progress.elapsed_s if progress.elapsed_s else 0.0
    rows = [
        ("device", recorded.device.name),
        ("measured", f"{progress.measured} points in {format_quantity(progress.elapsed_s, 'time')}"),
        ("failed", f"{progress.failed}; see `wattsmith record show --all`" if progress.failed else "none"),
        ("there already", str(passed_over)),
        ("inside measurement windows", f"{inside:.0%} of the time"),
        ("kept in", recorded.place),
    ]
    if progress.done < progress.total:
        rows.append(("not reached", f"{progress.total - progress.done} points; the same command goes on with them"))
    grid = Table.grid(padding=(0, 2))
    for key, value in rows:
        grid.add_row(key, escape(value))
    console.print(grid)


def print_coverage(runs: Sequence[Run], coverage: Sequence[Coverage]) -> None:
    """How many runs there are of each family at each precision."""
    console = _console()
    if not runs:
        console.print("no such run is in this record; `wattsmith record run` measures some")
        return
    devices = ", ".join(sorted({run.device.name for run in runs}))
    console.print(f"{len(runs)} runs on {escape(devices)}\n")
    precisions = sorted({row.precision for row in coverage})
    table = _table("family", "kind", *precisions, "not measured")
    kinds = {run.workload.family: run.workload.kind for run in runs}
    for family in sorted(kinds, key=lambda name: (kinds[name], name)):
        rows = [row for row in coverage if row.family == family]
        good = {p: sum(r.runs for r in rows if r.precision == p and r.status is Status.MEASURED) for p in precisions}
        failed = sum(r.runs for r in rows if r.status is not Status.MEASURED)
        table.add_row(family, kinds[family], *(str(good[p] or "–") for p in precisions), str(failed or "–"))
    console.print(table)


def print_runs(runs: Sequence[Run]) -> None:
    """Each run in a line."""
    table = _table("workload", "parameters", "step", "device busy", "energy of a step", "power", "memory")
    for run in runs:
        workload = run.workload
        what = f"{workload.family} {workload.mode} batch {workload.batch} {workload.precision}"
        shape = " ".join(f"{name}={value}" for name, value in workload.parameters.items())
        if run.times is None or run.consumption is None:
            table.add_row(what, shape, escape(f"{run.status}: {run.reason}"))
            continue
        times, used = run.times, run.consumption
        table.add_row(
            what,
            shape,
            f"{format_quantity(times.mean_s, 'time')} ± {times.error_ratio:.1%}",
            format_quantity(times.busy_s, "time"),
            format_quantity(used.step_energy_j, "energy") + (" (simulated)" if used.simulated else ""),
            format_quantity(used.power_w, "power"),
            format_quantity(used.peak_tensor_bytes, "memory"),
        )
    _console().print(table)
