"""What went wrong, said in one or two lines on standard error: what failed, with which value, and what to do next."""

import difflib
import os
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from wattsmith.terms.errors import BadInput, CommandNotStarted, NotWritten, WattsmithError

# Click's own, or the copy of it that newer versions of Typer carry.
UsageError: Any = typer.BadParameter.__bases__[0]
WRONG = 2  # exit code: what was asked for makes no sense, or cannot be had here
MISTAKE = 1  # exit code: a mistake of ours
SHOW_ALL = "WATTSMITH_TRACEBACK"
# Optional packages, and an extra that brings each; flows that know more of what they need say more.
EXTRAS = {
    "fastapi": "serve",
    "httpx": "serve",
    "matplotlib": "report",
    "numpy": "estimate",
    "onnx": "onnx",
    "psycopg": "postgres",
    "pydantic": "serve",
    "ray": "ray",
    "scipy": "estimate",
    "torch": "torch",
    "uvicorn": "serve",
    "yaml": "plan",
}
_KINDS = {"int_parsing": "a whole number", "int_from_float": "a whole number", "float_parsing": "a number"}

# What Python says, as people say it; the name of a file stands before it already.
_NO_FILE = re.compile(r"\[Errno -?\d+\] ([^:\n]+): '[^'\n]*'")
_NUMBER = re.compile(r"\[Errno -?\d+\] ")
_NO_TEXT = re.compile(r"'utf-8' codec can't decode byte (\w+) in position (\d+): [a-z ]+")
_PLAINER = ((_NO_FILE, r"\1"), (_NUMBER, ""), (_NO_TEXT, r"byte \2, \1, is no text in UTF-8"))


def complain(problem: Exception) -> int:
    """Say PROBLEM on standard error; the exit code that it has."""
    if isinstance(problem, CommandNotStarted):
        _say(str(problem))
        return problem.exit_code
    if isinstance(problem, WattsmithError):
        _say(str(problem))
        return WRONG
    if isinstance(problem, UsageError):
        return _complain_of_usage(problem)
    if isinstance(problem, OSError):  # such as standard output on a full disk
        _say(f"{problem.filename}: {problem.strerror}" if problem.filename and problem.strerror else str(problem))
        return WRONG
    if isinstance(problem, UnicodeEncodeError):  # what was typed reaches Python as bytes that stand for themselves
        _say(f"{problem.object!a} holds bytes that are no text in UTF-8; give it another name")
        return WRONG
    if isinstance(problem, ModuleNotFoundError) and (package := (problem.name or "").partition(".")[0]) in EXTRAS:
        _say(f"this needs {package}, which is not installed: pip install 'wattsmith[{EXTRAS[package]}]'")
        return WRONG
    if os.environ.get(SHOW_ALL):
        traceback.print_exception(problem)
    said = " ".join(str(problem).split()) or "nothing more is known"
    _say(
        f"this is a mistake in wattsmith, not of yours: {type(problem).__name__}: {said}\n"
        f"Please report it with what {SHOW_ALL}=1 shows in front of the same command."
    )
    return MISTAKE


def one_of(option: str, given: str, known: Iterable[str]) -> str:
    """GIVEN, if it is among KNOWN. Raises BadInput that names OPTION, what was given, and what is nearest to it."""
    there = list(known)
    if given in there:
        return given
    near = difflib.get_close_matches(given, there, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise BadInput(f"{option} must be one of {', '.join(there)}, got {given!r}.{hint}")


def can_be_written(option: str, path: Path | None, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse a PATH that cannot be written before hours of work are done for it. Raises NotWritten."""
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        *others, last = suffixes
        wanted = f"{', '.join(others)} or {last}" if others else last
        raise NotWritten(f"{option} must end in {wanted}, got {str(path)!r}")
    if path.is_dir():
        raise NotWritten(f"{option} must be a file, but {path} is a folder; choose another name")
    if not path.absolute().parent.is_dir():
        raise NotWritten(f"{option} {path} cannot be written: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise NotWritten(f"{option} {path} cannot be written by this user; choose another place")


def _complain_of_usage(problem: Any) -> int:
    context = problem.ctx
    if type(problem).__name__ == "NoArgsIsHelpError":
        typer.echo(problem.ctx.get_help())
        return WRONG
    said = _value_named(problem) or problem.format_message().replace("\n", " ")
    possible = getattr(problem, "possibilities", None)
    if possible:
        said = f"{said.partition(' (')[0].rstrip('.')}. Did you mean {' or '.join(sorted(possible))}?"
    path = context.command_path if context is not None else "wattsmith"
    _say(f"{said}{'' if said.endswith(('.', '?')) else '.'} See `{path} --help`.")
    return int(problem.exit_code)


def _value_named(problem: Any) -> str | None:
    """What is wrong with a value, with the value in it; None: Click has said so already."""
    cause = problem.__cause__ or problem.__context__
    if not hasattr(cause, "errors") or problem.param is None:
        return None
    (first, *_) = cause.errors()
    given, kind = first.get("input"), _KINDS.get(first.get("type"))
    param = problem.param
    name = param.opts[0] if param.param_type_name == "option" else param.make_metavar(problem.ctx)
    said = f"must be {kind}" if kind else first["msg"].replace("Input should be", "must be")
    return f"{name} {said}, got {given!r}"


def _say(words: str) -> None:
    for pattern, plain in _PLAINER:
        words = pattern.sub(plain, words)
    sys.stderr.write(f"wattsmith: {words.encode(errors='backslashreplace').decode()}\n")
