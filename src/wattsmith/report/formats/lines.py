"""Lines of a text file, streamed, with their numbers and endings, so that nothing is lost on the way back.

Bytes that are no UTF-8 come as lone surrogates and go back as they came.
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from wattsmith.terms.errors import BadInput

MOST_FILE_BYTES = 1 << 30  # no log of a session comes near; more is a mistake, or meant to hurt
MOST_LINE_BYTES = 1 << 24
NOT_UTF8 = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"), (b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "zip"))

Source = Path | bytes  # a file, or what stands in one


class Written(Protocol):
    """Whatever can say which text of the file it stands for."""

    @property
    def line(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Line:
    """One line as it stands in the file."""

    number: int  # from 1
    text: str  # without its ending
    ending: str  # "\n", "\r\n", or "" at the end of a file

    @property
    def line(self) -> str:
        return self.text + self.ending


@dataclass(frozen=True, slots=True)
class Unread:
    """A line that does not keep to its format, kept as it is."""

    number: int
    text: str
    ending: str
    why: str

    @property
    def line(self) -> str:
        return self.text + self.ending


def lines_of(source: Source, name: str | None = None) -> Iterator[Line]:
    """The lines of SOURCE one after the other, in constant memory.

    Raises BadInput, with file and line, for what is no text, has a line beyond all reason, or cannot be opened.
    """
    name = name_of(source, name)
    with opened(source, name) as stream:
        number = 0
        while raw := stream.readline(MOST_LINE_BYTES + 1):
            number += 1
            if len(raw) > MOST_LINE_BYTES:
                raise bad(name, number, f"the line is longer than {MOST_LINE_BYTES} bytes")
            if number == 1:
                _refuse_foreign(raw, name)
            ending = "\r\n" if raw.endswith(b"\r\n") else "\n" if raw.endswith(b"\n") else ""
            yield Line(number, decoded(raw[: len(raw) - len(ending)]), ending)


def whole(source: Source, name: str | None = None, most_bytes: int = 1 << 26) -> bytes:
    """All bytes of a file that must be read at once. Raises BadInput when it has more than most_bytes."""
    name = name_of(source, name)
    with opened(source, name, most_bytes) as stream:
        return stream.read(most_bytes + 1)


def written(pieces: Iterable[Written]) -> bytes:
    """What a file of these lines holds."""
    return encoded("".join(piece.line for piece in pieces))


def decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def readable(text: str, most: int = 120) -> str:
    """TEXT for a message: short, in one line, and printable."""
    short = text if len(text) <= most else text[:most] + "…"
    return encoded(short).decode("utf-8", "replace").__repr__()


def name_of(source: Source, name: str | None) -> str:
    return name if name is not None else str(source) if isinstance(source, Path) else "<bytes>"


def bad(name: str, number: int | None, why: str) -> BadInput:
    """The error of a reader: file, line, reason."""
    return BadInput(f"{name}: {why}" if number is None else f"{name}, line {number}: {why}")


@contextmanager
def opened(source: Source, name: str, most_bytes: int = MOST_FILE_BYTES) -> Iterator[BinaryIO]:
    """SOURCE as a stream of bytes. Raises BadInput when it is no file, cannot be read, or is too large."""
    if isinstance(source, bytes):
        _refuse_large(len(source), name, most_bytes)
        yield io.BytesIO(source)
        return
    try:
        if not source.is_file():  # a pipe or a device would never end
            raise bad(name, None, "there is no such file" if not source.exists() else "this is no regular file")
        _refuse_large(source.stat().st_size, name, most_bytes)
        with source.open("rb") as stream:
            yield stream
    except OSError as refused:
        raise bad(name, None, f"cannot be read: {refused.strerror or refused}") from refused


def _refuse_large(size_bytes: int, name: str, most_bytes: int) -> None:
    if size_bytes > most_bytes:
        raise bad(name, None, f"refused: it has {size_bytes} bytes, and no such file has more than {most_bytes}")


def _refuse_foreign(first: bytes, name: str) -> None:
    for start, what in NOT_UTF8:
        if first.startswith(start):
            raise bad(name, 1, f"this is {what}, not plain text; convert it first")
    if b"\0" in first:
        raise bad(name, 1, "this is no text: it has zero bytes")
