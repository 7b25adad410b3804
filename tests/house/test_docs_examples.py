"""What a quick start tells its reader to do, done: each page from top to bottom, in a folder and a shell of its own.

A block of bash is typed as it stands. A block that begins with `# NAME` is that file. Other Python is run by itself. A
block of text is what the command before it shows: its longer words must be there, its figures may be others; "unknown"
depends on the machine's meters. A block behind `<!-- not run: REASON -->` is left out, and the page says in words what
it needs; behind `<!-- may end with N -->` that exit code is right too.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("quick_start_*.md"))
BLOCK = re.compile(r"(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (?P<name>[\w./-]+\.\w+)\n")
RUN_BY = {"bash": "bash", "python": "python"}
AFTER = "--- block {} has ended ---"
LONG_WORD = re.compile(r"[A-Za-z]{5,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    kind: str
    text: str
    mark: str

    @property
    def is_run(self) -> bool:
        return self.kind in RUN_BY and not self.mark.startswith("not run: ") and not FILE.match(self.text)


def blocks_of(page: str) -> list[Block]:
    return [Block(kind=one["kind"], text=one["text"], mark=one["mark"] or "") for one in BLOCK.finditer(page)]


def script_of(blocks: list[Block]) -> str:
    """One shell that types all blocks, files included, and says when each of them has ended."""
    lines = ["set -euo pipefail", "exec 2>&1"]
    for number, block in enumerate(blocks):
        if block.mark.startswith("not run: "):
            continue
        if named := FILE.match(block.text):
            lines += [f"cat > {named['name']} <<'END OF FILE'", block.text.rstrip(), "END OF FILE"]
        elif block.kind == "python":
            lines += ["python - <<'END OF FILE'", block.text.rstrip(), "END OF FILE"]
        elif block.kind == "bash":
            allowed = re.fullmatch(r"may end with (\d+)", block.mark)
            # Not a subshell: what one block exports or starts, the next one has.
            lines += [f"{{\n{block.text.rstrip()}\n}} || [ $? = {allowed[1]} ]"] if allowed else [block.text.rstrip()]
        lines.append(f"echo '{AFTER.format(number)}'")
    return "\n".join(lines) + "\n"


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def typed(script: str, home: Path) -> tuple[int, str]:
    """Exit code and output of SCRIPT in the new folder HOME; nothing that it started is left running."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("WATTSMITH_", "XDG_"))},
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "PYTHONWARNINGS": "default",
    }
    printed = home / "printed.txt"  # not a pipe: a service that a page left running would keep it open
    with printed.open("w") as out:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            start_new_session=True,
        )
        try:
            code = shell.wait(timeout=150)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    return code, printed.read_text()


@pytest.fixture(scope="module")
def typed_pages(tmp_path_factory):
    """Exit code and output of each page; two at a time, as much of each is waiting."""

    def type_out(page: Path) -> tuple[int, str]:
        script = script_of(blocks_of(page.read_text())).replace("8711", str(free_port()))
        return typed(script, tmp_path_factory.mktemp(page.stem))

    with ThreadPoolExecutor(2) as pool:
        yield {page: pool.submit(type_out, page) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_quick_start_works_as_it_is_written(page, typed_pages):
    blocks = blocks_of(page.read_text())
    assert any(block.is_run for block in blocks)
    code, output = typed_pages[page].result()
    assert code == 0, output
    for number, block in enumerate(blocks):
        if block.kind == "text" and blocks[number - 1].is_run:
            shown = output.partition(AFTER.format(number - 1))[0].rpartition(AFTER.format(number - 2))[2]
            missing = set(LONG_WORD.findall(block.text)) - set(LONG_WORD.findall(shown)) - {"unknown"}
            assert not missing, f"{page.name} shows {missing}, and what was printed is:\n{shown}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_not_run_says_why(page):
    marks = {block.mark for block in blocks_of(page.read_text())}
    assert [mark for mark in marks if not re.fullmatch(r"(not run: \S.{9,}|may end with \d+|)", mark)] == []


def test_there_is_a_quick_start_for_each_kind_of_user():
    assert [page.stem for page in PAGES] == [
        "quick_start_benchmark",
        "quick_start_cluster",
        "quick_start_serve",
        "quick_start_train",
    ]


def test_blocks_are_typed_in_order_and_files_are_written(tmp_path):
    page = (
        "```python\n# a.py\nprint('from the file')\n```\n\n```bash\nexport WHO=me\npython a.py\n```\n\n"
        "<!-- not run: needs a GPU of one's own -->\n```bash\nfalse\n```\n\n"
        "<!-- may end with 3 -->\n```bash\necho $WHO\n(exit 3)\n```\n\n```python\nprint(6 * 7)\n```\n"
    )
    code, output = typed(script_of(blocks_of(page)), tmp_path)
    assert code == 0
    assert [line for line in output.splitlines() if "has ended" not in line] == ["from the file", "me", "42"]


def test_a_block_that_fails_ends_the_page(tmp_path):
    code, output = typed(script_of(blocks_of("```bash\nfalse\necho later\n```\n")), tmp_path)
    assert (code, output) == (1, "")
