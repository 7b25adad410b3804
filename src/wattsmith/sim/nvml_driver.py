"""The simulated NVML driver as a library: compiled on first need, kept in the user's cache."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from wattsmith.terms.errors import BadTerm, ExtraNeeded, MeterUnavailable, NotWritten

LIBRARY = "libnvidia-ml.so.1"
_SOURCES = ("nvml.c", "nvml_enter.c", "nvml_power.c", "nvml_settings.c", "nvml_abi.h", "nvml_state.h")
# Some tools look for nvidia-smi to know whether there is a driver, and then ask NVML.
_STAND_IN = """#!/bin/sh
echo "Simulated NVIDIA driver (wattsmith.sim.nvml): a stand-in for nvidia-smi that answers --help alone."
test "$1" = --help
"""
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-shared")


def function_names() -> list[str]:
    """The functions in the order in which the driver counts them, from the one list of them there is."""
    header = (Path(__file__).parent / "nvml_state.h").read_text()
    return re.findall(r"\bX\((\w+)\)", header.partition("#define NVML_CALLS(X)")[2])


def function_index(function: str) -> int:
    names = function_names()
    plain = re.sub(r"_v\d$", "", function)
    if plain not in names:
        raise BadTerm(f"the simulated driver has no function {function!r}; it has {', '.join(names)}")
    return names.index(plain)


def library() -> Path:
    """The compiled driver, compiled now if this is the first time. Several processes may ask at once.

    Beside it, in `bin`, lies a stand-in for nvidia-smi.
    """
    compiler = _compiler()
    here = Path(__file__).parent
    texts = [" ".join([compiler, *_FLAGS]), _STAND_IN, *(here.joinpath(name).read_text() for name in _SOURCES)]
    key = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    built = _cache_folder() / f"sim-nvml-{key}" / LIBRARY
    if not built.exists():
        _build(compiler, [here / name for name in _SOURCES if name.endswith(".c")], built)
    return built


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wattsmith"


def _compiler() -> str:
    named = os.environ.get("CC")
    found = next(filter(None, map(shutil.which, [named] if named else ["cc", "gcc", "clang"])), None)
    if found is None:
        raise ExtraNeeded(
            f"the simulated NVML driver is compiled on first use and there is no C compiler"
            f"{f' called {named} (CC)' if named else ''}. Install gcc or clang, or set CC to one."
        )
    return found


def _build(compiler: str, sources: Sequence[Path], built: Path) -> None:
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        number, partial = tempfile.mkstemp(prefix=LIBRARY, dir=built.parent)
    except OSError as failed:
        raise NotWritten(
            f"the simulated NVML driver cannot be written to {built.parent}: {failed}. Set XDG_CACHE_HOME."
        ) from failed
    os.close(number)
    _write_stand_in(built.parent / "bin")
    command = [compiler, *_FLAGS, f"-Wl,-soname,{LIBRARY}", *map(str, sources), "-o", partial, "-lm", "-pthread"]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    if compiled.returncode != 0:
        Path(partial).unlink()
        raise MeterUnavailable(f"the simulated NVML driver did not compile with {compiler}:\n{compiled.stderr}")
    Path(partial).chmod(0o755)
    Path(partial).replace(built)


def _write_stand_in(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    number, partial = tempfile.mkstemp(dir=folder)
    with os.fdopen(number, "w") as file:
        file.write(_STAND_IN)
    Path(partial).chmod(0o755)
    Path(partial).replace(folder / "nvidia-smi")
