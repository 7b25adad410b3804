"""What each round of MLPerf Inference asked of a power result. The rules changed nearly every time."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from wattsmith.terms.errors import BadInput

METERS = {
    "YokogawaWT210": 8,
    "YokogawaWT500": 35,
    "YokogawaWT500_multichannel": 48,
    "YokogawaWT310": 49,
    "YokogawaWT330E": 52,
    "YokogawaWT330_multichannel": 77,
}
MULTICHANNEL = 77  # the type of meter that must be started with two channel numbers
ALWAYS_USUAL = ("Can't evaluate uncertainty of this sample!",)
LATER_USUAL = (
    *ALWAYS_USUAL,
    *(f"Bad {what} reading nan from " for what in ("watts", "amps", "pf", "volts")),
    "Current appears to be too high for set range",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The rules of one round."""

    name: str
    until: date  # sessions up to this day belong to it, if nothing else tells
    local_times: bool = False  # logs carry local time, and the descriptors the seconds to UTC
    clock_limit_s: float
    clock_limit_included: bool = True
    same_duration: bool = True  # ranging and testing within 5 %; later their power instead
    uncertainty_fails: bool = False  # a sample above 1 % is a failure, no longer a warning
    slack_s: float = 0.0  # at both ends of the window, where the official checker overlooks warnings
    daemons: tuple[str, ...]
    meters: Mapping[str, int]
    usual_errors: tuple[str, ...] = ALWAYS_USUAL  # of the meter, while its ranges are sought
    usb_forgiven: bool = True
    server_has_more_messages: int = 0
    client_json_is_hashed: bool = False
    drops_non_positive: bool = False
    millijoules: bool = False  # how energy per query was published
    counts_by_rate: bool = False  # logs have no query count
    amps_ratio: float = 1.0  # range of the test over the largest current of the ranging
    fourth_amps: bool = False  # currents are set four times, and the third or fourth puts them back
    sources: frozenset[str]  # digests of the published workflow, see `sources_digest`


_V10 = Round(
    name="v1.0",
    until=date(2021, 4, 30),
    local_times=True,
    clock_limit_s=0.2,
    clock_limit_included=False,
    daemons=("1.9.1", "1.9.2"),
    meters=METERS,
    usb_forgiven=False,
    server_has_more_messages=1,
    client_json_is_hashed=True,
    counts_by_rate=True,
    sources=frozenset({"035e8a02baba8fb1"}),
)
_V11 = replace(
    _V10,
    name="v1.1",
    until=date(2021, 10, 31),
    local_times=False,
    meters={**METERS, "YokogawaWT310E": 49},
    usb_forgiven=True,
    server_has_more_messages=0,
    client_json_is_hashed=False,
    sources=frozenset({"047f02312e8f685c", "c71d74890327d173"}),
)
_V20 = replace(_V11, name="v2.0", until=date(2022, 4, 15), counts_by_rate=False)
_V21 = replace(
    _V20,
    name="v2.1",
    until=date(2022, 10, 31),
    clock_limit_s=0.5,
    clock_limit_included=True,
    meters={**_V20.meters, "YokogawaWT330": 52},
    sources=_V20.sources | {"dc57eacb037b62a0"},
)
_V30 = replace(
    _V21,
    name="v3.0",
    until=date(2023, 4, 15),
    daemons=("1.10.0",),
    millijoules=True,
    sources=_V21.sources | {"069c9e8a46ef33e6", "65252f8f84ef90e9", "90ef4207973286ff"},
)
_V31 = replace(
    _V30,
    name="v3.1",
    until=date(2023, 10, 31),
    same_duration=False,
    uncertainty_fails=True,
    slack_s=500.0,
    usual_errors=LATER_USUAL,
    drops_non_positive=True,
    sources=frozenset({"90ef4207973286ff", "2f0228cfd13f510a"}),
)
_V40 = replace(
    _V31,
    name="v4.0",
    until=date(2024, 4, 15),
    clock_limit_s=0.8,
    slack_s=800.0,
    meters={**_V31.meters, "YokogawaWT210_DC": 508, "YokogawaWT310_DC": 549, "YokogawaWT330_DC": 586},
    amps_ratio=1.1,
    sources=frozenset({"5e04bfb25b767791"}),
)
_V41 = replace(_V40, name="v4.1", until=date(2024, 10, 31))
_V50 = replace(
    _V41,
    name="v5.0",
    until=date(2025, 4, 15),
    daemons=("1.11.1",),
    fourth_amps=True,
    sources=frozenset({"b284d4cd4ccd7957"}),
)
_V51 = replace(_V50, name="v5.1", until=date.max)

ROUNDS = {one.name: one for one in (_V10, _V11, _V20, _V21, _V30, _V31, _V40, _V41, _V50, _V51)}
_NAMED = re.compile(r"(?<![\d.])v(\d\.\d)(?![\d.])")


def round_called(name: str) -> Round:
    """Raises BadInput when there is no such round."""
    found = ROUNDS.get(name if name.startswith("v") else f"v{name}")
    if found is None:
        raise BadInput(f"there is no profile of a round {name!r}; there are {', '.join(ROUNDS)}")
    return found


def round_of(place: str, session: str) -> tuple[Round | None, str]:
    """The round of a result by the names of its folders, else by the day of its session; and how that is known."""
    for part in reversed(place.split("/")):
        for found in _NAMED.findall(part):
            if f"v{found}" in ROUNDS and ("result" in part or part.startswith(("inf-", f"v{found}"))):
                return ROUNDS[f"v{found}"], f"the folder is called {part}"
    try:
        day = date.fromisoformat(session[:10])
    except ValueError:
        return None, "neither the folders nor the session's name tell it; say it with --round"
    return next(one for one in ROUNDS.values() if day <= one.until), f"the session is of {day}"


def sources_digest(sources: Mapping[str, Any]) -> str:
    """What tells one version of the workflow's files from another: of their names and SHA-1s."""
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:16]
