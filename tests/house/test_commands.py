"""Every command explains itself, and stands in the manual."""

from pathlib import Path

import pytest

import wattsmith.cli

MANUAL = Path(__file__).parents[2] / "docs" / "commands.md"


def commands():
    """Name as typed ("record run") and click command, for every command and group of commands."""
    if not hasattr(wattsmith.cli, "app"):
        pytest.skip("THE COMMAND LINE IS NOT CHECKED: wattsmith.cli has no `app` yet")
    import typer

    def walk(name, command):
        yield name, command
        for child_name, child in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {child_name}", child)

    return list(walk("wattsmith", typer.main.get_command(wattsmith.cli.app)))


def test_every_command_has_help():
    assert [name for name, command in commands() if not (command.help or "").strip()] == []


def test_every_option_has_help():
    silent = [
        f"{name} {parameter.opts[0]}"
        for name, command in commands()
        for parameter in command.params
        if parameter.param_type_name == "option" and not (parameter.help or "").strip()
    ]
    assert silent == []


def test_every_value_is_called_what_it_is_and_not_a_type_of_python():
    nameless = [
        f"{name} {parameter.opts[0]}"
        for name, command in commands()
        for parameter in command.params
        if parameter.metavar is None and not getattr(parameter, "is_flag", False)
    ]
    assert nameless == []


def test_every_command_stands_in_the_manual():
    named = commands()
    manual = MANUAL.read_text()
    assert [name for name, _ in named if name not in manual] == []
