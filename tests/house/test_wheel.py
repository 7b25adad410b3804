"""The wheel has all that the package needs, and works where only the core requirements are."""

import gzip
import json
import os
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "wattsmith"
HEAVY = ("numpy", "scipy", "torch", "fastapi", "matplotlib", "yaml", "ray", "transformers")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built anew, without a network."""
    pytest.importorskip("hatchling", reason="THE WHEEL IS NOT BUILT: hatchling is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


def needed_by(name):
    """Distributions that NAME needs without any extra, and what those need in turn."""
    found, open_ones = {}, [(name, "")]
    while open_ones:
        name, extra = open_ones.pop()
        for text in metadata.distribution(name).requires or ():
            one = Requirement(text)
            if one.marker is not None and not one.marker.evaluate({"extra": extra}):
                continue
            wanted = [(one.name, more) for more in ("", *one.extras) if (one.name, more) not in found]
            found.update(dict.fromkeys(wanted))
            open_ones += wanted
    return sorted({name for name, _ in found})


def top_level_of(name):
    """What NAME put into the folder of packages."""
    files = metadata.distribution(name).files or ()
    return {Path(one.parts[0]) for one in files if one.parts[0] not in ("..", "__pycache__")}


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    """A virtual environment with the wheel and, as links, the core requirements; nothing else can be imported there."""
    home = tmp_path_factory.mktemp("core")
    venv.create(home, symlinks=True, with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(packages)
    theirs = Path(metadata.distribution("typer").locate_file(""))
    for name in needed_by("wattsmith"):
        for part in top_level_of(name):
            place = packages / part
            if not place.exists():
                place.symlink_to(theirs / part)
    return home


def python(core, *arguments):
    """Run the environment's own Python elsewhere than in the tree, in a home of its own."""
    environment = {"HOME": str(core / "home"), "PATH": os.environ["PATH"], "PYTHONNOUSERSITE": "1"}
    return subprocess.run(
        [str(core / "bin" / "python"), *arguments],
        cwd=core,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def wattsmith(core, *arguments):
    return python(core, "-c", "from wattsmith.cli import main; main()", *arguments)


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel):
    there = {
        str(path.relative_to(ROOT / "src"))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert in_wheel == there


@pytest.mark.parametrize(
    "ending",
    [
        "py.typed",
        "records/h200.jsonl.gz",
        "schedule/work_schedule.v1.schema.json",
        "serve/page/static/page.css",
        "serve/page/templates/base.html",
        "sim/nvml.c",
        "sim/nvml_abi.h",
    ],
)
def test_what_is_no_module_travels_too(wheel, ending):
    with zipfile.ZipFile(wheel) as packed:
        assert f"wattsmith/{ending}" in packed.namelist()


def test_only_the_core_requirements_are_there(core):
    code = f"import importlib.util as u; print([name for name in {HEAVY!r} if u.find_spec(name)])"
    assert python(core, "-c", code).stdout == "[]\n"


def test_it_is_imported_with_the_core_requirements_alone(core):
    code = "import wattsmith; print(wattsmith.__file__); wattsmith.machine(); wattsmith.measure; wattsmith.open_session"
    done = python(core, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(str(core))


def test_measuring_and_reading_the_shipped_record_need_no_more(core):
    measured = wattsmith(core, "measure", "--meters", "modelled:10W-65W", "--", "true")
    assert measured.returncode == 0, measured.stderr
    assert "cpu-package:modelled" in measured.stderr
    shown = wattsmith(core, "record", "show", "h200", "--family", "matmul")
    assert shown.returncode == 0, shown.stderr
    assert "NVIDIA H200" in shown.stdout


def test_a_record_of_ones_own_is_made_with_its_migrations(core):
    with gzip.open(PACKAGE / "records" / "h200.jsonl.gz", "rt") as shipped:
        head, *runs = (next(shipped) for _ in range(4))
    (core / "few.jsonl").write_text(json.dumps(json.loads(head) | {"runs": 3}) + "\n" + "".join(runs))
    done = wattsmith(core, "record", "import", "few.jsonl", "--db", "own.sqlite")
    assert (done.returncode, done.stdout) == (0, "3 runs added, 0 were there already\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("record", "run", "--preset", "smoke", "--device", "cpu"), "torch"),
        (("estimate", "net.py:build", "--input", "3"), "torch"),
        (("split", "train.py:step"), "torch"),
        (("serve", "--home", "service", "--port", "0"), "serve"),
    ],
)
def test_what_needs_more_names_the_extra(core, arguments, extra):
    done = wattsmith(core, *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") <= 2  # one message, no traceback
    assert f"pip install 'wattsmith[{extra}]'" in done.stderr


def test_the_demo_says_what_is_missing_and_goes_on_to_its_page(core):
    done = wattsmith(core, "demo", "--quick", "--out", "shown")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("left out") == 5
    assert "measuring networks needs PyTorch: pip install 'wattsmith[torch,estimate,split,tune]'" in done.stdout
    page = Path(done.stdout.splitlines()[-1])
    assert page == core / "shown" / "index.html"
    assert "1 of 6 stages ran" in page.read_text()
