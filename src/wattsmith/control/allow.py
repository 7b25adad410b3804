"""Who may turn which knob how far: the daemon's allow-list. What it does not say is refused.

[[allow]]
users = ["alice", 1001]          # names or numbers; or groups = ["ml"]
knobs = ["gpu:*/power_limit"]    # * stands for anything
least = "300W"                   # optional, as are most, words, longest and shared
most = "600W"
longest = "30min"                # of one lease
"""

import grp
import pwd
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from wattsmith.terms.control import KnobCard, NotPermitted, Value, format_value
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.quantity import parse_quantity

LONGEST_S = 3600.0  # of a lease, where a rule says nothing
_KEYS = {"users", "groups", "knobs", "least", "most", "words", "longest", "shared"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end of a socket, as the kernel says."""

    pid: int
    uid: int
    gids: frozenset[int]

    @property
    def name(self) -> str:
        try:
            return f"{pwd.getpwuid(self.uid).pw_name} (uid {self.uid})"
        except KeyError:
            return f"uid {self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One [[allow]] of the file. None: no such bound."""

    uids: frozenset[int]
    gids: frozenset[int]
    knobs: tuple[str, ...]
    least: Mapping[str, float] | None = None  # by unit
    most: Mapping[str, float] | None = None
    words: tuple[str, ...] | None = None
    longest_s: float = LONGEST_S
    shared: bool = False  # also on GPUs that others use

    def speaks_of(self, peer: Peer, knob: str) -> bool:
        mine = peer.uid in self.uids or bool(peer.gids & self.gids)
        return mine and any(fnmatchcase(knob, pattern) for pattern in self.knobs)

    def lets(self, card: KnobCard, value: Value) -> bool:
        """Whether VALUE lies within this rule. An unlocked clock knows no bounds, so a rule with bounds forbids it."""
        least, most = (bound.get(card.unit) if bound else None for bound in (self.least, self.most))
        if value is None:
            return self.least is None and self.most is None
        if isinstance(value, str):
            return self.words is None or value in self.words
        ends = value if isinstance(value, tuple) else (value, value)
        wrong_unit = any(bound is not None and card.unit not in bound for bound in (self.least, self.most))
        return not wrong_unit and (least is None or ends[0] >= least) and (most is None or ends[1] <= most)

    def said(self, card: KnobCard) -> str:
        """What this rule allows, for people."""
        if not card.unit:
            return ", ".join(self.words or ("any",))
        bounds = [("at least ", self.least), ("at most ", self.most)]
        parts = [word + format_value(card, bound[card.unit]) for word, bound in bounds if bound and card.unit in bound]
        return " and ".join(parts) or ("any value" if self.least is None and self.most is None else "nothing")


class AllowList:
    """All rules; whoever is not spoken of may do nothing."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)

    def check_set(self, peer: Peer, card: KnobCard, value: Value) -> None:
        """Raise NotPermitted unless some rule lets PEER set this knob to VALUE."""
        rules = self._speaking(peer, card.name)
        if not rules:
            raise NotPermitted(
                f"{peer.name} may not set {card.name}: no rule of the daemon's allow-list says so. Ask whoever runs it."
            )
        if not any(rule.lets(card, value) for rule in rules):
            allowed = "; or ".join(rule.said(card) for rule in rules)
            raise NotPermitted(
                f"{peer.name} may not set {card.name} to {format_value(card, value)}: allowed is {allowed}"
            )

    def check_hold(
        self, peer: Peer, device: str, cards: Sequence[KnobCard], duration_s: float, *, shared: bool
    ) -> None:
        """Raise NotPermitted unless PEER may set anything on DEVICE, and hold it for so long."""
        rules = [rule for card in cards for rule in self._speaking(peer, card.name)]
        if not rules:
            raise NotPermitted(
                f"{peer.name} may not hold {device}: no rule of the daemon's allow-list names it. Ask whoever runs it."
            )
        longest_s = max(rule.longest_s for rule in rules)
        if duration_s > longest_s:
            raise NotPermitted(
                f"{peer.name} may hold {device} for at most {longest_s:g} s at a time, not {duration_s:g} s: "
                f"ask for less (`--lease {longest_s:g}s`); a lease is renewed while its holder works"
            )
        if shared and not any(rule.shared for rule in rules):
            raise NotPermitted(f"{peer.name} may not hold {device} while others use it")

    def _speaking(self, peer: Peer, knob: str) -> list[Rule]:
        return [rule for rule in self._rules if rule.speaks_of(peer, knob)]


# ---- reading it


def read_allow_list(path: Path) -> AllowList:
    """The allow-list in a TOML file. Raises BadInput, also when others than its owner may write the file."""
    try:
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise BadInput(f"{path} may be written by others than its owner, so it is not trusted: `chmod go-w {path}`")
        told = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as failed:
        raise BadInput(f"the allow-list {path} cannot be read: {failed}") from failed
    except tomllib.TOMLDecodeError as odd:
        raise BadInput(f"the allow-list {path} is not TOML: {odd}") from odd
    rules = told.get("allow")
    if set(told) - {"allow"} or not isinstance(rules, list):
        raise BadInput(f"the allow-list {path} holds [[allow]] tables and nothing else")
    return AllowList([_rule(rule, f"{path}, [[allow]] number {place}") for place, rule in enumerate(rules, 1)])


def _rule(told: Any, where: str) -> Rule:
    if not isinstance(told, dict):
        raise BadInput(f"{where}: it is not a table; write [[allow]] above its lines")
    if unknown := set(told) - _KEYS:
        raise BadInput(f"{where}: there is no {', '.join(sorted(unknown))}; there is {', '.join(sorted(_KEYS))}")
    if not told.get("knobs") or not (told.get("users") or told.get("groups")):
        raise BadInput(f"{where}: it must say who (users or groups) and what (knobs)")
    if not isinstance(told.get("shared", False), bool):
        raise BadInput(f"{where}: shared is true or false")
    return Rule(
        uids=frozenset(_uid(user, where) for user in _listed(told, "users", where)),
        gids=frozenset(_gid(group, where) for group in _listed(told, "groups", where)),
        knobs=tuple(map(str, _listed(told, "knobs", where))),
        least=_bound(told, "least", where),
        most=_bound(told, "most", where),
        words=tuple(map(str, _listed(told, "words", where))) if "words" in told else None,
        longest_s=_quantity(told["longest"], ["time"], f"{where}: longest")["s"] if "longest" in told else LONGEST_S,
        shared=told.get("shared", False),
    )


def _listed(told: Mapping[str, Any], key: str, where: str) -> list[Any]:
    listed = told.get(key, [])
    if not isinstance(listed, list):
        raise BadInput(f"{where}: {key} is a list, such as {key} = [{listed!r}]")
    return listed


def _uid(user: object, where: str) -> int:
    if isinstance(user, int) and not isinstance(user, bool):
        return user
    try:
        return pwd.getpwnam(str(user)).pw_uid
    except KeyError as unknown:
        raise BadInput(f"{where}: there is no user {user!r} on this machine") from unknown


def _gid(group: object, where: str) -> int:
    if isinstance(group, int) and not isinstance(group, bool):
        return group
    try:
        return grp.getgrnam(str(group)).gr_gid
    except KeyError as unknown:
        raise BadInput(f"{where}: there is no group {group!r} on this machine") from unknown


def _bound(told: Mapping[str, Any], key: str, where: str) -> dict[str, float] | None:
    return _quantity(told[key], ["power", "frequency"], f"{where}: {key}") if key in told else None


def _quantity(text: object, kinds: Sequence[str], where: str) -> dict[str, float]:
    """A quantity of one of these kinds, by its unit."""
    units = {"power": "W", "frequency": "Hz", "time": "s"}
    problem: BadTerm | None = None
    for kind in kinds:
        try:
            return {units[kind]: parse_quantity(str(text), kind)}
        except BadTerm as odd:
            problem = problem or odd
    raise BadInput(f"{where}: {problem}") from problem
