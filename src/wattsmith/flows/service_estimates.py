"""Estimates as a service gives them: from traced steps that clients send, so that no code of theirs runs here."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wattsmith.flows.devices import known_device
from wattsmith.flows.estimating import HowToEstimate, estimate_of, how_to_estimate
from wattsmith.flows.service_devices import Learned
from wattsmith.terms.errors import BadInput
from wattsmith.terms.estimate import Estimate
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.trace import Trace

HOW = ("batch", "precision", "mode", "optimizer", "layout", "accumulation", "compiled")
MOST_STRUCTURES = 256
MOST_ANSWERS = 4096
MOST_CALLS = 200_000  # of one step; the largest that was traced so far has some 20,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Structured:
    """A traced step, and how it is run."""

    trace: Trace
    how: Mapping[str, Any]
    name: str


def structure_key(body: Mapping[str, Any]) -> str:
    """Names this structure and no other."""
    text = json.dumps({name: body.get(name) for name in ("trace", "how")}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def parse_structure(body: Any) -> Structured:
    """BODY as it came, checked. Raises BadInput that names what is wrong."""
    if not isinstance(body, Mapping):
        raise BadInput("structure: expected an object with trace, how and name")
    if strange := sorted(set(body) - {"trace", "how", "name"}):
        raise BadInput(f"structure.{strange[0]}: not known here")
    how = body.get("how") or {}
    if not isinstance(how, Mapping):
        raise BadInput("structure.how: expected an object")
    if strange := sorted(set(how) - set(HOW)):
        raise BadInput(f"structure.how.{strange[0]}: not known here; known are {', '.join(HOW)}")
    name = body.get("name", "")
    if not isinstance(name, str) or len(name) > 500:
        raise BadInput("structure.name: expected a text of up to 500 letters")
    traced = parse_fact(Trace, body.get("trace"), "structure.trace")
    if len(traced.calls) > MOST_CALLS or len(traced.order) > 10 * MOST_CALLS or len(traced.memory) > 10 * MOST_CALLS:
        raise BadInput(f"structure.trace: a step of more than {MOST_CALLS} calls is not taken")
    if any(not -1 <= place < len(traced.calls) for place in traced.order):
        raise BadInput("structure.trace.order: it names calls that are not there")
    how_to_estimate(None, {**how, "batch": how.get("batch", 1)})  # says what is wrong
    return Structured(trace=traced, how=dict(how), name=name)


class Estimates:
    """Answers from kept structures, each worked out once for as long as the record stays the same.

    A record that has grown is read anew beside, and until then answers are from what it was: nobody waits for it.
    """

    def __init__(self, record: str | None, find: Callable[[str], Any | None]) -> None:
        self._devices = Learned(lambda name: known_device(name, record), relearned=self._forget_answers)
        self._find = find  # the body of a structure by its key
        self._lock = threading.Lock()
        self._structures: OrderedDict[str, Structured] = OrderedDict()
        self._answers: OrderedDict[tuple[Any, ...], Estimate] = OrderedDict()

    def learn(self, key: str, structured: Structured) -> None:
        with self._lock:
            self._structures[key] = structured
            while len(self._structures) > MOST_STRUCTURES:
                self._structures.popitem(last=False)

    def structure(self, key: str) -> Structured | None:
        with self._lock:
            known = self._structures.get(key)
        if known is None and (body := self._find(key)) is not None:
            known = parse_structure(body)
            self.learn(key, known)
        return known

    def record_has_grown(self) -> None:
        self._devices.record_has_grown()

    def _forget_answers(self) -> None:
        with self._lock:
            self._answers.clear()

    def estimate(self, key: str, structured: Structured, **on: Any) -> Estimate:
        """The estimate of a structure ON a device: `device`, `devices`, `power_limit_w`, `samples`, `epochs`."""
        self._devices.refresh()
        asked = (key, *(on.get(name) for name in ("device", "devices", "power_limit_w", "samples", "epochs")))
        with self._lock:
            if asked in self._answers:
                self._answers.move_to_end(asked)
                return self._answers[asked]
        how = how_to_estimate(None, {**structured.how, "methods": False, **on})
        found = self._estimated(structured, how)
        with self._lock:
            self._answers[asked] = found
            while len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)
        return found

    def _estimated(self, structured: Structured, how: HowToEstimate) -> Estimate:
        assert isinstance(how.device, str)
        return estimate_of(structured.trace, self._devices.device(how.device), how, batch=how.batch or 1)
