"""Every `wattsmith …` that a page shows names a command and options that are there."""

import re
from pathlib import Path

import pytest
import typer

import wattsmith.cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", *(page for name in ("deploy", "docs", "examples") for page in (ROOT / name).rglob("*.md"))]
)
FENCED = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"(?:^|[\s;&|(]|/bin/)(?<!--owner )wattsmith (?P<words>[^|;&>#\n]*)")
PROMPT = re.compile(r"^\S*[$#] (.*)$", re.MULTILINE)
OURS = typer.main.get_command(wattsmith.cli.app)


def shown_commands(page: str) -> list[str]:
    """What stands behind each `wattsmith` that is typed on a page, up to a command of the user's own."""
    typed = INLINE.findall(FENCED.sub("", page))
    for block in FENCED.finditer(page):
        text = block["text"].replace("\\\n", " ")
        # Without a language, what is typed stands behind a prompt, and the rest is what was printed.
        typed += {"bash": text.splitlines(), "": PROMPT.findall(text)}.get(block["kind"], [])
    return [found["words"].partition(" -- ")[0] for line in typed for found in COMMAND.finditer(line)]


def unknown_in(words: str) -> list[str]:
    """The subcommand or the options in WORDS that `wattsmith` does not have."""
    command, wrong = OURS, []
    parts = words.split()
    if parts[:1] == ["tune"] and parts[1:2] not in (["run"], ["serve"], ["replay"]):
        parts.insert(1, "run")  # `wattsmith tune …` is `wattsmith tune run …`
    for part in parts:
        option = re.match(r"--[a-z][a-z-]*", part)
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        if option and option[0] not in {"--help", *known}:
            wrong.append(option[0])
        elif part in getattr(command, "commands", {}):
            command = command.commands[part]
        elif command is OURS and re.fullmatch(r"[a-z]+", part):
            return [part]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_one_of_ours(page):
    wrong = {words: unknown for words in shown_commands(page.read_text()) if (unknown := unknown_in(words))}
    assert wrong == {}


def test_the_guard_sees_a_command_and_an_option_that_are_not_there():
    page = "```bash\nwattsmith measur -- x\nwattsmith measure --jsn -- y --x\n```\n`wattsmith jobs list --limit 1`\n"
    assert [unknown_in(words) for words in shown_commands(page)] == [[], ["measur"], ["--jsn"]]
