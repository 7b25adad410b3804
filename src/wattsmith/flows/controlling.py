"""Change settings of this machine for a while and have them come back: knobs, leases, restore, the daemon."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wattsmith.control.allow import read_allow_list
from wattsmith.control.client import DaemonLease
from wattsmith.control.daemon import serve as serve_clients
from wattsmith.control.find import find_knobs
from wattsmith.control.journal import all_journals, default_state_folder, forget_journal, journal_files, open_state
from wattsmith.control.lease import DEFAULT_DURATION_S, Lease
from wattsmith.control.restoring import restore_left_behind
from wattsmith.flows.child import require_command, signals_held, start, wait_for
from wattsmith.terms.control import (
    Knob,
    KnobCard,
    KnobLost,
    LeaseOver,
    NotPermitted,
    PutBack,
    Value,
    Verified,
    parse_value,
)
from wattsmith.terms.errors import BadInput

SYSFS_VARIABLE = "WATTSMITH_SYSFS"  # another tree than /sys, such as a simulated one
RESTORE_WAIT_S = 2.0  # a watchdog may be at it just now


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobState:
    """A knob and how it is set now."""

    card: KnobCard
    value: Value
    problem: str | None = None  # why the value is not known


def knobs_here() -> list[KnobState]:
    """Every knob of this machine. Nothing is changed."""
    return [_looked_at(knob) for knob in find_knobs(_sysfs()).values()]


def _looked_at(knob: Knob) -> KnobState:
    if not knob.card.readable:
        return KnobState(card=knob.card, value=None, problem="not told")
    try:
        return KnobState(card=knob.card, value=knob.read())
    except (KnobLost, NotPermitted) as failed:
        return KnobState(card=knob.card, value=None, problem=str(failed))


def hold(
    devices: Sequence[str],
    *,
    socket: Path | str | None = None,
    duration_s: float = DEFAULT_DURATION_S,
    state: Path | str | None = None,
    shared: bool = False,
    were: Mapping[str, Value] | None = None,
) -> Lease | DaemonLease:
    """A lease of DEVICES ("gpu:0"): this process's own, or, with SOCKET, one from the daemon. Use it with `with`.

    Settings made under it come back when it is closed, and when this process ends in whatever way.
    """
    if isinstance(devices, str):
        raise BadInput(f"devices are a list of names, such as [{devices!r}]")
    if socket is None:
        folder = None if state is None else Path(state)
        return Lease.take(devices, duration_s=duration_s, state=folder, sysfs=_sysfs(), shared=shared, were=were)
    if were:
        raise BadInput("what a knob was cannot be told to the daemon: only who may set it freely may say so")
    return DaemonLease.take(devices, socket_path=Path(socket), duration_s=duration_s, shared=shared)


def restore(state: Path | str | None = None) -> list[PutBack]:
    """Put back every device whose holder has died together with its watchdog, as after a power cut."""
    return restore_left_behind(default_state_folder() if state is None else Path(state), RESTORE_WAIT_S)


def forget(name: str, state: Path | None = None) -> Path:
    """Remove the journal of a device (its name, its identity or the file) without putting anything back."""
    state = state or default_state_folder()
    named = {
        path
        for path, journal in all_journals(state)
        if name
        in {path.name, path.stem, str(path), getattr(journal, "device", None), getattr(journal, "identity", None)}
    }
    if len(named) != 1:
        known = ", ".join(path.name for path in journal_files(state)) or "none"
        raise BadInput(f"{len(named)} journals are called {name!r}; there are in {state}: {known}")
    (path,) = named
    forget_journal(path)
    return path


def serve(
    socket: Path,
    allow: Path,
    *,
    state: Path | None = None,
    say: Callable[[str], None],
    stop: threading.Event | None = None,
) -> None:
    """Turn knobs for others as far as the file ALLOW lets them, until SIGTERM or SIGINT; then all is put back."""
    rules = read_allow_list(allow)
    state = state or default_state_folder()
    open_state(state)
    over = stop or threading.Event()
    with _ended_by_signals(over):
        serve_clients(socket, rules, state=state, sysfs=_sysfs(), stop=over, say=say)


@contextmanager
def _ended_by_signals(over: threading.Event) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: over.set()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def run_with(
    settings: Sequence[str],
    command: Sequence[str],
    *,
    socket: Path | None = None,
    state: Path | None = None,
    shared: bool = False,
    duration_s: float = DEFAULT_DURATION_S,
    tell: Callable[[KnobCard, Verified], None],
    warn: Callable[[str], None],
) -> int:
    """Run COMMAND at SETTINGS ("gpu:0/power_limit=300W"); gives its exit code, as a shell would, once all is back.

    The lease is renewed while the command runs; DURATION_S is how long settings outlast us if we hang.
    """
    require_command(command)
    pairs = [_setting(text) for text in settings]
    devices = sorted({knob.partition("/")[0] for knob, _ in pairs})
    with hold(devices, socket=socket, duration_s=duration_s, state=state, shared=shared) as lease:
        for knob, text in pairs:
            tell(lease.card(knob), lease.set(knob, parse_value(lease.card(knob), text)))
        with signals_held() as held:
            return wait_for(start(command, held), held, _renewing(lease, duration_s, warn), duration_s / 3).exit_code


def _renewing(lease: Lease | DaemonLease, duration_s: float, warn: Callable[[str], None]) -> Callable[[], None]:
    """Renews the lease; once that fails, says so once, and the command goes on without its settings."""
    over = threading.Event()

    def renew() -> None:
        if over.is_set():
            return
        try:
            lease.renew(duration_s)
        except (LeaseOver, NotPermitted) as ended:
            over.set()
            warn(f"the command runs on without its settings: {ended}")

    return renew


def _setting(text: str) -> tuple[str, str]:
    knob, equals, value = text.partition("=")
    if not equals or "/" not in knob or not value:
        raise BadInput(f"{text!r} is no setting: write KNOB=VALUE, such as gpu:0/power_limit=300W")
    return knob, value


def _sysfs() -> Path:
    return Path(os.environ.get(SYSFS_VARIABLE, "/sys"))
