"""What must be said beside a figure of energy: boundary, instruments, accuracy, estimates, exclusions, and its tier."""

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattsmith import __version__
from wattsmith.report.tiers import Basis, MeterKind, Standing, basis_of, standing_of
from wattsmith.terms.energy import DomainEnergy, Source, Window
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.run import Run
from wattsmith.terms.tuning import Tuned

FORMAT = 1
NEVER_COVERED = ("remote storage", "cooling outside of the machine", "networks and switches outside of the machine")
WHOLE = ("wall", "node")  # kinds of domain that hold a whole machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number, with its unit and doubt."""

    name: str
    value: float | None  # None: unknown
    unit: str  # "J", "W", "s", "J/step", "samples/J"
    error: float | None = None  # bound in the same unit; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """What measured one part."""

    domain: str
    name: str
    source: str
    resolution_s: float | None
    accuracy_ratio: float | None  # None: its vendor states none
    readings: int
    missed: int
    counted: bool  # False: it lies inside another, and is shown beside the sum alone
    simulated: bool
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disclosure:
    """All that a reader needs to judge a figure."""

    title: str
    figures: tuple[Figure, ...]
    standing: Standing
    basis: Basis
    boundary: str
    excluded: tuple[str, ...]
    instruments: tuple[Instrument, ...]
    estimates: tuple[str, ...]
    remarks: tuple[str, ...]
    measured_at: str | None  # ISO 8601 with zone; None: not stated
    made_by: str = field(default_factory=lambda: f"wattsmith {__version__}")
    format: int = FORMAT

    def text(self) -> str:
        """For people, and for the folder that the figure goes into."""
        lines = [self.title, "=" * len(self.title), "", self.standing.text(), "", "Figures"]
        lines += [f"  {figure.name:<26}{_figure_text(figure)}" for figure in self.figures]
        lines += ["", f"Measured at   {self.measured_at or 'not stated'}", f"Boundary      {self.boundary}"]
        lines += [f"Excluded      {what}" for what in self.excluded]
        lines += ["", "Instruments"] + [f"  {_instrument_text(one)}" for one in self.instruments or ()]
        lines += [] if self.instruments else ["  none"]
        lines += ["", "Estimates"] + [f"  {what}" for what in self.estimates or ("none",)]
        lines += ["", "Remarks"] + [f"  {what}" for what in self.remarks or ("none",)]
        return "\n".join([*lines, "", f"Made by {self.made_by} on {platform.system()} {platform.machine()}", ""])


def disclose_window(
    window: Window,
    *,
    title: str | None = None,
    basis: Basis | None = None,
    figures: Sequence[Figure] = (),
    remarks: Sequence[str] = (),
    replayed: bool = False,
    of: str = "",
) -> Disclosure:
    """What is to be said of WINDOW. FIGURES go beside its own; BASIS, when more is known than the window tells.

    OF names what the window's own figures hold, such as "the phase", where FIGURES are of something else.
    """
    behind = f" of {of}" if of else ""
    basis = basis or basis_of(window, replayed=replayed)
    counted = {domain.domain for domain in window.counted}
    own = [
        Figure(name=f"duration{behind}", value=window.duration_s, unit="s"),
        Figure(name=f"energy{behind}", value=window.energy_j, unit="J", error=window.error_j),
        Figure(name=f"mean power{behind}", value=window.power_w, unit="W"),
    ]
    return Disclosure(
        title=title or window.name,
        figures=(*own, *figures),
        standing=standing_of(basis),
        basis=basis,
        boundary=_boundary(window),
        excluded=_excluded(window),
        instruments=tuple(_instrument(domain, counted) for domain in window.domains),
        estimates=tuple(
            f"{domain.domain} is computed from a stated model ({domain.name})"
            for domain in window.domains
            if domain.source is Source.MODELLED
        ),
        remarks=(*_remarks(window), *remarks),
        measured_at=window.began_at,
    )


def disclose_run(run: Run) -> Disclosure:
    """What is to be said of one run of a record."""
    used = run.consumption
    kind = "gpu" if run.device.kind == "cuda" else "cpu-package"
    source = None if used is None else used.energy_source
    domain = f"{'node' if source is Source.EXTERNAL else kind}:0"
    energy_j = None
    if used is not None and used.power_w is not None:
        energy_j = used.power_w * used.window_s
    why = run.reason or "no meter told the energy of this run"
    told = DomainEnergy(
        domain=domain,
        name=run.device.name,
        source=source or Source.COUNTER,
        energy_j=energy_j,
        error_j=None,
        resolution_s=None,
        simulated=run.device.simulated or (used is not None and used.simulated),
        why=why if energy_j is None else None,
    )
    workload = run.workload
    window = Window(
        name=f"{workload.family} {workload.mode}, batch {workload.batch}, {workload.precision} on {run.device.name}",
        began_at=run.provenance.measured_at,
        duration_s=0.0 if used is None else used.window_s,
        domains=(told,),
    )
    figures = [] if run.times is None else [Figure(name="step", value=run.times.mean_s, unit="s")]
    if used is not None:
        figures.append(
            Figure(name="energy of a step", value=used.step_energy_j, unit="J/step", error=used.step_energy_error_j)
        )
    remarks = [f"{name} {version}" for name, version in run.provenance.versions.items()]
    if run.provenance.driver:
        remarks.append(f"driver {run.provenance.driver}")
    # A record keeps no count of readings; that is unknown, not none.
    basis = dataclasses.replace(basis_of(window), samples=None)
    return disclose_window(window, basis=basis, figures=figures, remarks=remarks)


def disclose_tuning(tuned: Tuned, *, title: str) -> Disclosure:
    """What is to be said of a search for a setting: the file does not say with which meter the energy was taken."""
    basis = Basis(meter=MeterKind.UNSTATED, simulated=tuned.simulated)
    advice = tuned.recommendation
    return Disclosure(
        title=title,
        figures=(
            Figure(name=f"expected {tuned.objective}", value=advice.objective.value, unit="as tuned"),
            Figure(name="expected saving", value=advice.saving.value, unit="share of the present setting"),
            Figure(name="energy of all trials", value=tuned.spent_j, unit="J"),
        ),
        standing=standing_of(basis),
        basis=basis,
        boundary="as in the trials; the result of a search does not name its meters",
        excluded=NEVER_COVERED,
        instruments=(),
        estimates=(
            "the expected figures are predictions; nine times out of ten they lie within "
            f"{advice.objective.low:.6g} … {advice.objective.high:.6g}, "
            f"the saving within {advice.saving.low:.1%} … {advice.saving.high:.1%}",
        ),
        remarks=(
            advice.why,
            f"{len(tuned.trials)} trials; setting {_setting_text(advice.setting)}",
            "measure the chosen setting with `wattsmith measure --json` for a figure with its meter",
        ),
        measured_at=None,
    )


def _boundary(window: Window) -> str:
    kinds = {domain.kind for domain in window.counted}
    names = ", ".join(domain.domain for domain in window.counted)
    if not names:
        return "nothing was measured"
    if kinds & set(WHOLE):
        return f"the whole machine ({names})"
    return f"the named components alone ({names}); the rest of the machine is not in the figure"


def _excluded(window: Window) -> tuple[str, ...]:
    kinds = {domain.kind for domain in window.counted}
    parts = () if kinds & set(WHOLE) else ("power supplies, fans, memory and disks that no named component holds",)
    return (*parts, *(f"{kind}: {why}" for kind, why in window.missing.items()), *NEVER_COVERED)


def _instrument(domain: DomainEnergy, counted: set[str]) -> Instrument:
    return Instrument(
        domain=domain.domain,
        name=domain.name,
        source=domain.source.value,
        resolution_s=domain.resolution_s,
        accuracy_ratio=domain.accuracy_ratio,
        readings=domain.readings,
        missed=domain.missed,
        counted=domain.domain in counted,
        simulated=domain.simulated,
        note=domain.why,
    )


def _remarks(window: Window) -> tuple[str, ...]:
    found = []
    for domain in window.domains:
        if domain.missed:
            found.append(f"{domain.domain} missed {domain.missed} of {domain.readings + domain.missed} readings")
        check = domain.cross_check
        if check is not None and not check.agrees:
            found.append(
                f"{domain.domain}: its counter says {check.counter_j:.6g} J and its power {check.integrated_j:.6g} J, "
                f"which is more apart than both errors ({check.joint_error_j:.3g} J)"
            )
    return tuple(found)


_QUANTITY = {"J": "energy", "W": "power", "s": "time"}


def _figure_text(figure: Figure) -> str:
    if figure.value is None:
        return "unknown"
    if figure.unit in _QUANTITY:
        doubt = "" if figure.error is None else f" ± {format_quantity(figure.error, _QUANTITY[figure.unit])}"
        return f"{format_quantity(figure.value, _QUANTITY[figure.unit])}{doubt}"
    doubt = "" if figure.error is None else f" ± {figure.error:.3g}"
    return f"{figure.value:.6g}{doubt} {figure.unit}"


def _instrument_text(one: Instrument) -> str:
    accuracy = "accuracy not stated by vendor" if one.accuracy_ratio is None else f"accuracy {one.accuracy_ratio:.2%}"
    parts = [one.domain, one.name, one.source, accuracy, f"{one.readings} readings, {one.missed} missed"]
    parts += [] if one.counted else ["inside another, not added"]
    parts += ["simulated"] if one.simulated and "simulated" not in one.name else []
    return "; ".join(parts + ([one.note] if one.note else []))


def _setting_text(setting: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={level}" for name, level in setting.items())
