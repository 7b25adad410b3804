"""Client devices of a service: their reports as telemetry, what they are recognised as, what they are told to do."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattsmith.flows.matched_schedules import schedule_for
from wattsmith.flows.matching import SmallRecord, match
from wattsmith.schedule.matched import evidence_of
from wattsmith.terms.errors import BadInput
from wattsmith.terms.schedule import Shape
from wattsmith.terms.service import Client, ClientAbout, DeviceAbout, DomainReport, KeptReport
from wattsmith.terms.telemetry import ACTIVITIES, Match, Series, Telemetry
from wattsmith.terms.work import Setting
from wattsmith.terms.work_schedule import (
    DeviceIdentity,
    Evidence,
    Phase,
    PhaseSetting,
    Site,
    Timing,
    Work,
    WorkSchedule,
)

FEWEST_REPORTS = 10
HOLDS_S = 3600.0  # how long a work schedule from a match holds; by then the client may run something else
PLAIN = ("power_w", "energy_j", "busy_ratio", "memory_busy_ratio", "memory_used_bytes", "clock_hz", "memory_clock_hz")


def telemetry_of(client: Client, kept: Sequence[KeptReport], domain: str | None = None) -> Telemetry:
    """The reports of one start of the agent, the last one, as telemetry of one device."""
    if not kept:
        raise BadInput(f"{client.name} has sent no reports lately; is its agent running?")
    boot = kept[-1].report.boot
    reports = sorted((one.report for one in kept if one.report.boot == boot), key=lambda one: one.number)
    if len(reports) < FEWEST_REPORTS:
        raise BadInput(f"{client.name} has sent {len(reports)} reports so far; at least {FEWEST_REPORTS} are needed")
    chosen = domain or _busiest(reports[-1].domains)
    device = _device(client.about, chosen)
    times: dict[str, list[float]] = {}
    values: dict[str, list[float]] = {}

    def see(channel: str, time_s: float, value: float | None) -> None:
        if value is not None:
            times.setdefault(channel, []).append(time_s)
            values.setdefault(channel, []).append(float(value))

    for report in reports:
        seen = report.domains.get(chosen)
        if seen is not None:
            for name in PLAIN:
                see(name, report.time_s, getattr(seen, name))
            for name in ACTIVITIES:
                see(name, report.time_s, seen.activity.get(name))
        see("steps", report.time_s, report.steps)
    latest = reports[-1].domains.get(chosen)
    return Telemetry(
        series={name: Series(time_s=tuple(times[name]), values=tuple(values[name])) for name in times},
        domain=chosen,
        device=None if device is None else device.name,
        power_limit_w=(latest.power_limit_w if latest else None) or (device.power_limit_w if device else None),
        max_clock_hz=None if device is None else device.max_clock_hz,
        memory_bytes=None if device is None else device.memory_bytes,
        simulated=device is not None and device.simulated,
    )


def _busiest(domains: Mapping[str, DomainReport]) -> str:
    known = {name: one.power_w or 0.0 for name, one in domains.items() if name.startswith("gpu:")}
    if not known:
        known = {name: one.power_w or 0.0 for name, one in domains.items()}
    if not known:
        raise BadInput("the client reports no device that could be matched")
    return max(known, key=lambda name: known[name])


def _device(about: ClientAbout | None, domain: str) -> DeviceAbout | None:
    return None if about is None else next((one for one in about.devices if one.domain == domain), None)


def matched(telemetry: Telemetry, record: str | None) -> Match:
    """What the work on a client is most like, by the record of the service, or by a shipped one if that is small."""
    try:
        return match(telemetry, record=record)
    except SmallRecord:
        return match(telemetry, record="h200")


def schedule_from(found: Match, client: Client, telemetry: Telemetry, *, now_s: float, slowdown: float) -> WorkSchedule:
    """The work schedule of a client whose work was matched: its best setting where it was recognised, else as it is."""
    why = found.refused
    if found.recognised:
        try:
            steps = HOLDS_S * (found.fingerprint.steps_per_s or 1.0)
            made = schedule_for(
                found,
                job=found.family.family if found.family is not None else "unknown",
                steps=steps,
                slowdown=slowdown,
                client=client.name,
                device=telemetry.domain,
                now_s=now_s,
            )
            why = _out_of_range(made, _device(client.about, telemetry.domain))
            if why is None:
                return replace(made, valid_until_s=now_s + HOLDS_S)
        except BadInput as refused:
            why = str(refused)
    return _as_it_is(client, telemetry, replace(evidence_of(found), rejected=True, why=why), now_s)


def _out_of_range(made: WorkSchedule, device: DeviceAbout | None) -> str | None:
    ends_w = None if device is None else device.power_limit_range_w
    for phase in (phase for work in made.works for phase in work.phases):
        limit_w = phase.setting.power_limit_w
        if limit_w is not None and ends_w is not None and not ends_w[0] <= limit_w <= ends_w[1]:
            return (
                f"a limit of {limit_w:.0f} W would be best, and the device takes {ends_w[0]:.0f} to {ends_w[1]:.0f} W"
            )
    return None


def _as_it_is(client: Client, telemetry: Telemetry, evidence: Evidence, now_s: float) -> WorkSchedule:
    """A schedule that sets nothing, and says why."""
    identities = tuple(_identity(one) for one in (client.about.devices if client.about else ()))
    if telemetry.domain not in {one.device for one in identities}:
        identities = (*identities, DeviceIdentity(device=telemetry.domain, name=telemetry.device or "unknown"))
    phase = PhaseSetting(device=telemetry.domain, phase=Phase.STEADY, setting=Setting())
    site = Site(node=client.name, devices=(telemetry.domain,))
    return WorkSchedule(
        client=client.name,
        issued_s=now_s,
        valid_from_s=now_s,
        valid_until_s=now_s + HOLDS_S,
        serial=0,
        devices=identities,
        works=(Work(job="unknown", phases=(phase,), shape=Shape(), timing=Timing(), site=site, evidence=evidence),),
    )


def _identity(one: DeviceAbout) -> DeviceIdentity:
    return DeviceIdentity(
        device=one.domain,
        name=one.name,
        uuid=one.uuid,
        memory_bytes=one.memory_bytes,
        power_limit_w=one.power_limit_w,
        power_limit_range_w=one.power_limit_range_w,
    )
