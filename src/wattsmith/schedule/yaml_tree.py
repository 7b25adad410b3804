"""YAML as a tree in which every value knows its line, so that what is wrong can be named."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattsmith.terms.errors import BadInput, ExtraNeeded

MOST_VALUES = 200_000  # with all that aliases repeat; a file that unfolds to more is meant to do harm
MOST_BYTES = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of a file: a text, None, a list of values, or values by name."""

    plain: Any
    line: int
    place: str  # "jobs[2].deadline"
    file: str

    def wrong(self, why: str) -> BadInput:
        """The error that says where WHY is."""
        return BadInput(f"{self.file}, line {self.line}, {self.place or 'the file'}: {why}")

    def items(self) -> list["Value"]:
        if not isinstance(self.plain, list):
            raise self.wrong(f"must be a list, one item with - on each line; got {self.said}")
        return self.plain

    def fields(self, known: tuple[str, ...]) -> dict[str, "Value"]:
        """The values by name, all of which must be KNOWN."""
        if not isinstance(self.plain, dict):
            raise self.wrong(f"must hold names with values, such as {known[0]}: …; got {self.said}")
        for name, value in self.plain.items():
            if name not in known:
                import difflib

                near = difflib.get_close_matches(name, known, n=1)
                meant = f" (did you mean {near[0]}?)" if near else ""
                raise value.wrong(f"{name!r} is not known here{meant}; known are {', '.join(known)}")
        return self.plain

    def text(self) -> str:
        if not isinstance(self.plain, str) or not self.plain:
            raise self.wrong(f"must be a text; got {self.said}")
        return self.plain

    @property
    def said(self) -> str:
        if isinstance(self.plain, dict):
            return "names with values"
        if isinstance(self.plain, list):
            return "a list"
        return "nothing" if self.plain in (None, "") else repr(self.plain)


def read_tree(path: Path) -> Value:
    """The file as a tree. Raises BadInput with line and place where it is no YAML, circular, or says a thing twice."""
    try:
        import yaml
    except ImportError as missing:
        raise ExtraNeeded("jobs and pools are read with PyYAML: `pip install 'wattsmith[plan]'`") from missing
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInput(f"{path.name} is larger than {MOST_BYTES // 10**6} MB; split it")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as refused:
        raise BadInput(f"{path} cannot be read: {refused}") from refused
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        line = mark.line + 1 if mark else 1
        raise BadInput(f"{path.name}, line {line}: this is no YAML: {wrong.problem or wrong.context}") from wrong
    except yaml.YAMLError as wrong:
        raise BadInput(f"{path.name}: this is no YAML: {wrong}") from wrong
    except RecursionError as deep:
        raise BadInput(f"{path.name}: it is nested too deeply to be meant") from deep
    if node is None:
        raise BadInput(f"{path.name} is empty")
    return _tree(node, "", path.name, [], iter(range(MOST_VALUES)))


def _tree(node: Any, place: str, file: str, above: list[int], left: Iterator[int]) -> Value:
    line = node.start_mark.line + 1
    if next(left, None) is None:
        raise BadInput(f"{file}, line {line}: aliases unfold to more than {MOST_VALUES} values; write them out")
    if id(node) in above:
        raise BadInput(f"{file}, line {line}, {place}: it holds itself (an alias * to what it stands in); write it out")
    inside = [*above, id(node)]
    if node.id == "sequence":
        items = [_tree(one, f"{place}[{number}]", file, inside, left) for number, one in enumerate(node.value, 1)]
        return Value(plain=items, line=line, place=place, file=file)
    if node.id == "mapping":
        fields: dict[str, Value] = {}
        for key, one in node.value:
            name = key.value if key.id == "scalar" else None
            where = f"{file}, line {key.start_mark.line + 1}"
            if name is None:
                raise BadInput(f"{where}: a name must be a plain word")
            if name in fields:
                raise BadInput(f"{where}, {_joined(place, name)}: it is said twice; keep one")
            fields[name] = _tree(one, _joined(place, name), file, inside, left)
        return Value(plain=fields, line=line, place=place, file=file)
    nothing = node.tag == "tag:yaml.org,2002:null"
    return Value(plain=None if nothing else node.value, line=line, place=place, file=file)


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
