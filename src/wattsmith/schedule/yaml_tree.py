"""YAML as a tree in which every value knows its line, so that what is wrong can be named; all of it at once."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from wattsmith.terms.errors import BadInput, ExtraNeeded

Read = TypeVar("Read")

MOST_VALUES = 200_000  # with all that aliases repeat; a file that unfolds to more is meant to do harm
MOST_BYTES = 20_000_000
MOST_DEEP = 100
MERGE = "<<"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of a file: a text, None, a list of values, or values by name."""

    plain: Any
    line: int | None  # None: it came as an object
    place: str  # "jobs[2].deadline"
    file: str

    def wrong(self, why: str) -> BadInput:
        """The error that says where WHY is."""
        line = "" if self.line is None else f", line {self.line}"
        message = f"{self.file}{line}, {self.place or ('the whole' if self.line is None else 'the file')}: {why}"
        return BadInput(message, [(self.place, self.line, why)])

    def items(self) -> list["Value"]:
        if not isinstance(self.plain, list):
            raise self.wrong(f"must be a list, one item with - on each line; got {self.said}")
        return self.plain

    def fields(self, known: tuple[str, ...], wrongs: "Wrongs | None" = None) -> dict[str, "Value"]:
        """The values by name, all of which must be KNOWN. Those that are not go to WRONGS, where there is such."""
        if not isinstance(self.plain, dict):
            raise self.wrong(f"must hold names with values, such as {known[0]}: …; got {self.said}")
        found = Wrongs() if wrongs is None else wrongs
        for name, value in self.plain.items():
            if name not in known:
                found.add(value.wrong(_unknown(name, known)))
        if wrongs is None:
            found.tell()
        return {name: value for name, value in self.plain.items() if name in known}

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


def _unknown(name: str, known: tuple[str, ...]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"{name!r:.60} is not known here{meant}; known are {', '.join(known)}"


@dataclass(slots=True)
class Wrongs:
    """What has been found wrong so far, so that all of it can be told at once."""

    found: list[BadInput] = field(default_factory=list)

    def add(self, wrong: BadInput) -> None:
        self.found.append(wrong)

    def tried(self, read: Callable[[], Read], otherwise: Read) -> Read:
        """What READ gives; OTHERWISE where it finds something wrong."""
        try:
            return read()
        except BadInput as wrong:
            self.add(wrong)
            return otherwise

    def read(self, fields: Mapping[str, Value], name: str, how: Callable[[Value], Read], otherwise: Read) -> Read:
        """What HOW reads at the field NAME; OTHERWISE where there is none, or it is wrong."""
        return self.tried(lambda: how(fields[name]), otherwise) if name in fields else otherwise

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """The enclosed code ends at the first thing that is wrong, which is kept."""
        try:
            yield
        except BadInput as wrong:
            self.add(wrong)

    def tell(self) -> None:
        """Raise everything that was found, by line."""
        if not self.found:
            return
        once = {str(one): one for one in self.found}
        by_line = sorted(once.values(), key=lambda one: one.problems[0][1] or 0 if one.problems else 0)
        raise BadInput("\n".join(map(str, by_line)), [problem for one in by_line for problem in one.problems])


def read_tree(path: Path) -> Value:
    """The file as a tree. Raises BadInput with line and place where it is no YAML, circular, or says a thing twice."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInput(f"{path.name} is larger than {MOST_BYTES // 10**6} MB; split it")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as refused:
        why = refused.strerror if isinstance(refused, OSError) else f"it is no text ({refused})"
        raise BadInput(f"{path} cannot be read: {why}") from refused
    return tree_of(text, path.name)


def tree_of(text: str, file: str) -> Value:
    """TEXT as a tree; FILE is what errors call it."""
    try:
        import yaml
    except ImportError as missing:
        raise ExtraNeeded("jobs and pools are read with PyYAML: `pip install 'wattsmith[plan]'`") from missing
    if len(text) > MOST_BYTES:
        raise BadInput(f"{file} is larger than {MOST_BYTES // 10**6} MB; split it")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        line = mark.line + 1 if mark else 1
        why = f"this is no YAML: {wrong.problem or wrong.context}"
        raise BadInput(f"{file}, line {line}: {why}", [("", line, why)]) from wrong
    except yaml.YAMLError as wrong:
        raise BadInput(f"{file}: this is no YAML: {wrong}") from wrong
    except RecursionError as deep:
        raise BadInput(f"{file}: it is nested too deeply to be meant") from deep
    if node is None:
        raise BadInput(f"{file} is empty")
    return _tree(node, "", file, [], iter(range(MOST_VALUES)))


def tree_of_object(plain: object, file: str) -> Value:
    """An object, as JSON has them, as a tree without lines: numbers, yes and no become the texts that YAML has."""
    return _of_object(plain, "", file, iter(range(MOST_VALUES)), MOST_DEEP)


def _of_object(plain: object, place: str, file: str, left: Iterator[int], deeper: int) -> Value:
    if next(left, None) is None or not deeper:
        raise BadInput(f"{file}, {place}: there is more in it than can be meant")
    value: object = plain
    if isinstance(plain, Mapping):
        value = {
            str(name): _of_object(one, _joined(place, str(name)), file, left, deeper - 1) for name, one in plain.items()
        }
    elif isinstance(plain, list | tuple):
        value = [_of_object(one, f"{place}[{n}]", file, left, deeper - 1) for n, one in enumerate(plain, 1)]
    elif isinstance(plain, bool):
        value = "true" if plain else "false"
    elif plain is not None:
        value = str(plain)
    return Value(plain=value, line=None, place=place, file=file)


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
                why = "it is said twice; keep one"
                problem = (_joined(place, name), key.start_mark.line + 1, why)
                raise BadInput(f"{where}, {_joined(place, name)}: {why}", [problem])
            fields[name] = _tree(one, _joined(place, name), file, inside, left)
        return Value(plain=_merged(fields), line=line, place=place, file=file)
    nothing = node.tag == "tag:yaml.org,2002:null"
    return Value(plain=None if nothing else node.value, line=line, place=place, file=file)


def _merged(fields: dict[str, Value]) -> dict[str, Value]:
    """FIELDS with what "<<" names put in where they have nothing of their own, as YAML does."""
    if MERGE not in fields:
        return fields
    merged = fields.pop(MERGE)
    found = dict(fields)
    for one in merged.plain if isinstance(merged.plain, list) else [merged]:
        if not isinstance(one.plain, dict):
            raise one.wrong(f"<< takes names with values, such as *defaults; got {one.said}")
        found = {**one.plain, **found}
    return found


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
