"""Where a session's watts come from: a power daemon, or the meters that this machine has."""

import threading
import time
from collections.abc import Callable
from typing import Any

from wattsmith.flows.measuring import open_session
from wattsmith.measure.ptd import PtdClient, PtdRanges, PtdSample, as_messages
from wattsmith.measure.session import OpenWindow, date_of
from wattsmith.measure.session import Session as Meters
from wattsmith.report.checks.rounds import METERS
from wattsmith.report.formats.ptd_log import ptd_line
from wattsmith.report.formats.spl import spl_sample
from wattsmith.report.session import Recorded, SessionPlan, SourceCard
from wattsmith.report.tiers import MeterKind, basis_of, kind_of, weakest
from wattsmith.terms import energy
from wattsmith.terms.energy import DomainEnergy, Window
from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable
from wattsmith.terms.ports import Clock

UNKNOWN = -1.0  # how spl.txt says that volts, amps and power factor are not told
DUMMY = 0  # the type of device that stands for none


class PtdSource:
    """An analyzer behind its power daemon, asked in the order of the official director."""

    window_is_of = "the load"

    def __init__(
        self,
        host: str,
        port: int,
        plan: SessionPlan,
        clock: Clock,
        *,
        log: Callable[[], list[str]] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """LOG gives the lines of the daemon's own log when the session is over; None: they cannot be had."""
        self._plan, self._clock, self._log = plan, clock, log
        self._client = PtdClient(host, port, timeout_s=timeout_s)
        try:
            identity = self._client.identify()
            self._found = self._client.ranges()
        except (MeterLost, MeterMissed) as failed:
            self._client.close()
            raise MeterUnavailable(str(failed)) from failed
        if not identity.known_version:
            self._client.close()
            raise MeterUnavailable(
                f"the power daemon at {self._client.address} is version {identity.version}, which no round has used"
            )
        self._uncertainty_ratio: float | None = None
        self._identity = identity
        self._running = False
        self._restored = False

    @property
    def card(self) -> SourceCard:
        model = self._identity.model
        return SourceCard(
            name=f"{model} by its power daemon {self._identity.version}",
            kind=MeterKind.WALL,
            simulated=self._identity.simulated,
            listed=model in METERS,
            accuracy_ratio=self._uncertainty_ratio,
            config={
                "command": [],
                "device_type": METERS.get(model, DUMMY),
                "interface_flag": "",
                "dc_flag": None,
                "device_port": self._client.address,
                "channel": None,
            },
        )

    def start(self, mark: str, volts: float | None, amps: float | None) -> None:
        self._client.set_ranges(PtdRanges(volts=volts, amps=amps))
        if amps is None:
            self._client.set_range("A", None)  # rounds from v5.0 on ask for it twice before ranging
        self._clock.sleep_s(self._plan.settle_s)
        self._client.go(mark, period_s=self._plan.period_s)
        self._running = True

    def stop(self, mark: str) -> Recorded:
        if mark.endswith("_testing"):
            self._client.average()
            self._client.uncertainty_ratio()
        self._client.stop()
        self._running = False
        samples = self._client.samples()
        newest_s = samples[-1].wall_s if samples else None
        self._uncertainty_ratio = self._client.uncertainty_ratio()
        self._client.average()
        valid = [sample for sample in samples if sample.valid]
        if not valid:
            raise MeterUnavailable(f"the analyzer gave no valid sample in {mark}; the session is void")
        return Recorded(
            lines=tuple(_spl_line(sample, mark) for sample in samples),
            newest_s=newest_s,
            most_volts=max(sample.volts for sample in valid),
            most_amps=max(sample.amps for sample in valid),
        )

    def finish(self) -> tuple[list[dict[str, Any]], list[str]]:
        self._restore()
        said = self._client.messages
        if self._log is not None:
            return as_messages(said), self._log()
        seen = ["The daemon's own log was not given to this session (--ptd-log). What its client saw:"]
        seen += [ptd_line(one.asked_s, f"{one.command} -> {one.reply}") for one in said]
        return as_messages(said), seen

    def close(self) -> None:
        """Put the ranges back, if nobody did, and hang up."""
        try:
            if self._running:
                self._client.stop()
            self._restore()
        except (MeterLost, MeterMissed):
            pass  # the daemon is gone, and the meter with it
        finally:
            self._client.close()

    def window(self, name: str, duration_s: float, power_w: float, samples: int, invalid: int) -> Window:
        """The session's window as other measurements have it."""
        energy_j = power_w * duration_s
        told = DomainEnergy(
            domain="wall:0",
            name=self.card.name + (" (simulated)" if self.card.simulated else ""),
            source=energy.Source.EXTERNAL,
            energy_j=energy_j,
            error_j=None if self._uncertainty_ratio is None else energy_j * self._uncertainty_ratio,
            resolution_s=self._plan.period_s,
            accuracy_ratio=self._uncertainty_ratio,
            simulated=self.card.simulated,
            readings=samples,
            missed=invalid,
        )
        return _window(name, duration_s, (told,))

    def _restore(self) -> None:
        if not self._restored:
            self._restored = True
            self._client.set_ranges(self._found)


class MetersSource:
    """Whatever meters this machine has, as one sample of mean power each period."""

    window_is_of = "the phase"  # idle before and after the load with it

    def __init__(self, meters: str, plan: SessionPlan, clock: Clock) -> None:
        self._plan, self._clock = plan, clock
        self._meters: Meters = open_session(meters)
        if not self._meters.cards:
            why = "; ".join(f"{kind}: {reason}" for kind, reason in self._meters.missing.items())
            self._meters.close()
            raise MeterUnavailable(f"there is no meter to measure a session with. {why}")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples: list[tuple[float, OpenWindow]] = []
        self._whole: dict[str, OpenWindow] = {}
        self._latest: Window | None = None

    @property
    def card(self) -> SourceCard:
        basis = None if self._latest is None else basis_of(self._latest)
        domains = [] if self._latest is None else self._latest.counted
        return SourceCard(
            name=", ".join(f"{domain.domain} {domain.name}" for domain in domains) or "meters of this machine",
            kind=weakest([kind_of(domain) for domain in domains]),
            simulated=any(card.simulated for card in self._meters.cards),
            accuracy_ratio=None if basis is None else basis.accuracy_ratio,
            config={"meters": [card.domain for card in self._meters.cards]},
        )

    def start(self, mark: str, volts: float | None, amps: float | None) -> None:  # noqa: ARG002 - it has no ranges
        self._clock.sleep_s(self._plan.settle_s)
        self._samples, self._ended = [], threading.Event()
        self._whole[mark] = self._meters.begin(mark)
        self._thread = threading.Thread(target=self._sample, name="wattsmith-session", daemon=True)
        self._thread.start()

    def stop(self, mark: str) -> Recorded:
        self._halt()
        self._latest = self._whole[mark].end().result()
        if self._latest.energy_j is None:
            raise MeterUnavailable(f"no meter told the energy in {mark}; the session is void")
        lines = []
        for wall_s, window in self._samples:
            power_w = window.result().power_w
            # A sample that is not known is written as the daemon writes one that failed.
            told_w = UNKNOWN if power_w is None else power_w
            lines.append(spl_sample(wall_s, told_w, UNKNOWN, UNKNOWN, UNKNOWN, mark, ending="").line)
        return Recorded(lines=tuple(lines), newest_s=self._samples[-1][0] if self._samples else None)

    def finish(self) -> tuple[list[dict[str, Any]], list[str]]:
        simulated = " (simulated)" if self.card.simulated else ""
        lines = ["No power daemon took part in this session.", f"Power came from {self.card.name}{simulated}."]
        return [], lines

    def close(self) -> None:
        self._halt()
        self._meters.close()

    def window(self, name: str, duration_s: float, power_w: float, samples: int, invalid: int) -> Window:  # noqa: ARG002
        """The whole phase as the meters saw it, idle before and after the load with it."""
        assert self._latest is not None
        return self._latest

    def _sample(self) -> None:
        """Windows of one period each, end to end, until somebody stops it."""
        due_s = time.monotonic()
        window = self._meters.begin("sample")
        while not self._ended.is_set():
            due_s += self._plan.period_s
            if self._ended.wait(max(0.0, due_s - time.monotonic())):
                break
            ended, window = window, self._meters.begin("sample")
            ended.end()
            self._samples.append((time.time(), ended))
        window.end()

    def _halt(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


Source = PtdSource | MetersSource


def _spl_line(sample: PtdSample, mark: str) -> str:
    """A sample with its mark, and with the names of its channels, as the director writes it."""
    if not sample.channels_w:
        return f"{sample.text},Mark,{mark}"
    fields = sample.text.split(",")
    head, rest = fields[:10], fields[10:]
    if not rest[0].startswith("Ch"):
        channels = [rest[at : at + 8] for at in range(0, len(rest), 8)]
        rest = [part for number, channel in enumerate(channels, 1) for part in (f"Ch{number}", *channel)]
    return ",".join([*head, "Mark", mark, *rest])


def _window(name: str, duration_s: float, domains: tuple[DomainEnergy, ...]) -> Window:
    return Window(name=name, began_at=date_of(time.time() - duration_s, 0.0), duration_s=duration_s, domains=domains)
