"""Power of the whole node as its management controller tells it over Redfish."""

import base64
import http.client
import json
import math
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from wattsmith.terms.energy import CounterReading, MeterCard, PowerSample, Readings, Source
from wattsmith.terms.errors import BadInput, MeterLost, MeterMissed, MeterUnavailable
from wattsmith.terms.ports import Clock, Meter

PASSWORD_VARIABLE = "WATTSMITH_REDFISH_PASSWORD"
_POLL_S = 1.0
_J_PER_KWH = 3_600_000.0
_MOST_BYTES = 1 << 20  # of one answer
_MOST_CHASSIS = 64
_PARTS = frozenset({"Component", "Module", "Card", "Cartridge", "Zone", "IPBasedDrive"})  # of a node, not a node


def find_redfish(
    clock: Clock,
    url: str,
    *,
    password: str | None = None,
    token: str | None = None,
    insecure: bool = False,
    timeout_s: float = 3.0,
) -> list[Meter]:
    """The node's meter, from a controller at URL such as "https://operator@bmc-17".

    The user stands in the URL; the PASSWORD, when not given, in the variable WATTSMITH_REDFISH_PASSWORD. TOKEN is
    that of an open session, instead of both. INSECURE accepts any certificate, and a password over plain HTTP.
    A path in the URL names one chassis. Raises MeterUnavailable, saying what to do.
    """
    service = _Service(url, password, token, insecure=insecure, timeout_s=timeout_s)
    try:
        root = service.get("/redfish/v1/")
        chassis_path, sensor = _choose(service, _chassis_paths(service, root))
        chassis = service.get(chassis_path)
    except _Failed as failed:
        raise MeterUnavailable(f"{failed}. {failed.what_to_do}") from failed
    names = [_at(chassis, key) for key in ("Manufacturer", "Model")]
    return [
        RedfishMeter(
            clock,
            service,
            sensor,
            name=" ".join(n for n in names if isinstance(n, str) and n) or f"node at {service.host}",
            simulated="simulated" in f"{_at(root, 'Name')} {_at(root, 'Vendor')}".lower(),
        )
    ]


class RedfishMeter:
    """One chassis' power, and its energy counter where it has one."""

    def __init__(self, clock: Clock, service: "_Service", sensor: "_Sensor", *, name: str, simulated: bool) -> None:
        self._clock, self._service, self._path = clock, service, sensor.path
        self._last_s: float | None = None
        self._last_j = self._lost_j = 0.0
        self._open = True
        first = sensor.first
        # How often a counter of such steps moves at the power found, at most.
        period_s = None if first.step_j is None else max(_POLL_S, first.step_j / first.power_w)
        self.card = MeterCard(
            domain="node:0",
            name=f"{name} (simulated)" if simulated else name,
            source=Source.EXTERNAL,
            counter_period_s=period_s,
            power_period_s=first.window_s or _POLL_S,
            power_window_s=first.window_s,
            poll_period_s=_POLL_S,
            encloses=("gpu", "cpu-package", "dram", "psys", "soc", "soc-rail"),
            simulated=simulated,
            note=None
            if period_s is None
            else f"its energy counter is coarse: at the power found it moved every {period_s:.0f} s or oftener",
        )

    def read(self, *, counter: bool) -> Readings:
        if not self._open:
            raise MeterLost(f"{self.card.domain} was closed")
        asked_s = self._clock.now_s()
        try:
            told = _told(self._service.get(self._path))
        except _Failed as failed:
            raise (MeterLost if failed.final else MeterMissed)(str(failed)) from failed
        if told is None:
            raise MeterMissed(f"{self._service.host} told no power of its chassis this time")
        # The controller looked somewhere between question and answer.
        time_s = (asked_s + self._clock.now_s()) / 2
        fresh = self._last_s is None or time_s > self._last_s
        power = (PowerSample(time_s, told.power_w),) if fresh else ()
        self._last_s = time_s if fresh else self._last_s
        if not counter or self.card.counter_period_s is None or told.energy_j is None:
            return Readings(power=power)
        return self._with_counter(power, time_s, told.energy_j)

    def close(self) -> None:
        self._open = False

    def _with_counter(self, power: tuple[PowerSample, ...], time_s: float, energy_j: float) -> Readings:
        before_j, self._last_j = self._last_j, energy_j
        went_back = energy_j < before_j
        if went_back:
            self._lost_j += before_j
        return Readings(
            power=power,
            counter=CounterReading(time_s, self._lost_j + energy_j),
            missed=int(went_back),
            why_missed="the node's energy counter was reset and began again" if went_back else None,
        )


class _Told(NamedTuple):
    """What one answer holds."""

    power_w: float
    energy_j: float | None = None
    step_j: float | None = None  # the finest difference of `energy_j` that the answer can express
    window_s: float | None = None  # the power is a mean over so long; None: not stated


class _Sensor(NamedTuple):
    path: str
    first: _Told


class _Failed(Exception):
    """A question that got no use."""

    def __init__(self, message: str, what_to_do: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.what_to_do = what_to_do
        self.final = final


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would carry the password to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Service:
    """Asks one controller, and no other host."""

    def __init__(self, url: str, password: str | None, token: str | None, *, insecure: bool, timeout_s: float) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as odd:
            raise BadInput(f"not the address of a Redfish service ({odd}); write https://user@host") from odd
        if parts.scheme not in ("http", "https") or not host:
            raise BadInput("not the address of a Redfish service; write https://user@host")
        if parts.password is not None:
            raise BadInput(f"leave the password out of the address of {host}; put it into {PASSWORD_VARIABLE}")
        self.host = host
        self.wanted_path = parts.path.rstrip("/")
        shown_host = f"[{host}]" if ":" in host else host
        self._base = f"{parts.scheme}://{shown_host}" + (f":{port}" if port else "")
        self._timeout_s = timeout_s
        self._headers = {"Accept": "application/json", **_credentials(parts.username, password, token, host)}
        secret = len(self._headers) > 1
        if secret and parts.scheme == "http" and not insecure and host not in ("127.0.0.1", "::1", "localhost"):
            raise BadInput(f"a password would go to {host} in the clear; write https, or ask for `insecure`")
        talk = (
            urllib.request.HTTPSHandler(context=_tls(insecure=insecure))
            if parts.scheme == "https"
            else urllib.request.HTTPHandler()
        )
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _StayHere, talk)

    def get(self, path: str) -> Any:
        """The JSON at PATH. Raises _Failed."""
        request = urllib.request.Request(self._base + path, headers=self._headers)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                body = answer.read(_MOST_BYTES + 1)
        except urllib.error.HTTPError as refused:
            with refused:
                raise self._refused(refused.code, path) from refused
        except (OSError, http.client.HTTPException, ValueError) as failed:
            raise self._unreached(failed) from failed
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as odd:
            raise _Failed(
                f"{self.host}{path} answered {len(body)} bytes that are no JSON", "Is this a Redfish service?"
            ) from odd

    def _refused(self, status: int, path: str) -> _Failed:
        if status in (401, 403):
            return _Failed(
                f"{self.host} refuses these credentials for {path} (HTTP {status})",
                f"Check the user in the address and the password in {PASSWORD_VARIABLE}; it needs the right to log in.",
                final=True,
            )
        if 300 <= status < 400:
            return _Failed(f"{self.host} sends {path} elsewhere (HTTP {status})", "Write https, or the right host.")
        return _Failed(
            f"{self.host} has no {path} to give (HTTP {status})",
            "Measure the node with `--meters ipmi`, or without it.",
            final=status in (404, 410),
        )

    def _unreached(self, failed: Exception) -> _Failed:
        reason = getattr(failed, "reason", failed)
        if isinstance(reason, ssl.SSLCertVerificationError):
            return _Failed(
                f"the certificate of {self.host} cannot be checked ({reason.verify_message})",
                "Install the authority that signed it, or ask for `insecure` on a network you trust.",
            )
        return _Failed(
            f"{self.host} did not answer within {self._timeout_s:g} s ({reason or type(failed).__name__})",
            "Check the address and that this machine may reach the controller.",
        )


def _tls(*, insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _credentials(user: str | None, password: str | None, token: str | None, host: str) -> dict[str, str]:
    if token is not None:
        return {"X-Auth-Token": token}
    if user is None:
        return {}
    secret = os.environ.get(PASSWORD_VARIABLE) if password is None else password
    if secret is None:
        raise MeterUnavailable(f"no password for {host}: put it into the variable {PASSWORD_VARIABLE}")
    pair = f"{urllib.parse.unquote(user)}:{secret}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _chassis_paths(service: _Service, root: Any) -> list[str]:
    if service.wanted_path not in ("", "/redfish", "/redfish/v1", "/redfish/v1/Chassis"):
        return [service.wanted_path]
    collection = service.get(_link(root, "Chassis") or "/redfish/v1/Chassis")
    members = _at(collection, "Members")
    paths = [_at(member, "@odata.id") for member in members] if isinstance(members, list) else []
    return [path for path in paths if _is_path(path)][:_MOST_CHASSIS]


def _choose(service: _Service, paths: list[str]) -> tuple[str, _Sensor]:
    """The one chassis that is the node, and where it tells its power."""
    found: dict[str, _Sensor] = {}
    container: dict[str, str | None] = {}
    for path in paths:
        chassis = service.get(path)
        if len(paths) > 1 and _at(chassis, "ChassisType") in _PARTS:
            continue
        sensor = next(_sensors(service, chassis), None)
        if sensor is not None:
            found[path] = sensor
            container[path] = _link(_at(chassis, "Links"), "ContainedBy")
    found = {path: sensor for path, sensor in found.items() if container[path] not in found}
    if len(found) == 1:
        return next(iter(found.items()))
    if found:
        raise _Failed(
            f"{service.host} tells the power of {len(found)} chassis: {', '.join(found)}",
            "Put the path of the one to measure into the address, as in https://user@host/redfish/v1/Chassis/1.",
        )
    raise _Failed(
        f"none of the {len(paths)} chassis at {service.host} tells its power",
        "Measure the node with `--meters ipmi`, or without it.",
    )


def _sensors(service: _Service, chassis: Any) -> Iterator[_Sensor]:
    """Where CHASSIS tells its power, best first."""
    for link in ("EnvironmentMetrics", "Power"):
        path = _link(chassis, link)
        if path is None:
            continue
        try:
            told = _told(service.get(path))
        except _Failed as failed:
            if not failed.final:
                raise
            continue  # a link that leads nowhere, as some controllers have
        if told is not None:
            yield _Sensor(path, told)


def _told(answer: Any) -> _Told | None:
    """Power and energy in an EnvironmentMetrics or Power resource; None when it tells no power.

    A running node never draws 0 W: controllers say 0 when they do not know.
    """
    power_w = _positive(_at(answer, "PowerWatts", "Reading"))
    if power_w is not None:
        counted_kwh = _positive(_at(answer, "EnergykWh", "Reading"))
        if counted_kwh is None:
            return _Told(power_w)
        return _Told(power_w, energy_j=counted_kwh * _J_PER_KWH, step_j=_last_digit(counted_kwh) * _J_PER_KWH)
    whole = _at(answer, "PowerControl", 0)  # the first entry is the whole node; others, if any, its parts
    power_w = _positive(_at(whole, "PowerConsumedWatts"))
    if power_w is not None:
        return _Told(power_w)
    mean_w = _positive(_at(whole, "PowerMetrics", "AverageConsumedWatts"))
    interval_min = _positive(_at(whole, "PowerMetrics", "IntervalInMin"))
    return None if mean_w is None or interval_min is None else _Told(mean_w, window_s=interval_min * 60)


def _last_digit(number: float) -> float:
    """What one step of NUMBER's last decimal is worth: 0.001 for 12.345, 1 for 12; never below a millionth."""
    exponent = Decimal(repr(number)).normalize().as_tuple().exponent
    return 10.0 ** max(-6, min(0, exponent)) if isinstance(exponent, int) else 1.0


def _link(resource: Any, key: str) -> str | None:
    path = _at(resource, key, "@odata.id")
    return path if _is_path(path) else None


def _is_path(path: Any) -> bool:
    return isinstance(path, str) and re.fullmatch(r"/[!-~]*", path) is not None


def _at(value: Any, *keys: str | int) -> Any:
    """What lies at KEYS inside VALUE; None where there is nothing."""
    for key in keys:
        if isinstance(key, str) and isinstance(value, dict):
            value = value.get(key)
        elif isinstance(key, int) and isinstance(value, list) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def _positive(value: Any) -> float | None:
    """VALUE as a positive finite number; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        return None
    return float(value) if math.isfinite(value) else None
