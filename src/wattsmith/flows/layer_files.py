"""Layer information that a program tells of itself while it runs, through a file."""

import json
import os
from pathlib import Path

from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.run import Structure

VARIABLE = "WATTSMITH_LAYERS"


def tell_layers(path: str | Path | None = None) -> bool:
    """Write what one step of this program's network does into PATH, once its third step is over.

    One line in a PyTorch program, before its first step. Without PATH it goes where `wattsmith match -- COMMAND`, or
    whoever set WATTSMITH_LAYERS, wants it; where nobody does, nothing is watched, and the answer is False.
    """
    wanted = path or os.environ.get(VARIABLE)
    if not wanted:
        return False
    from wattsmith.record.layer_hook import LayerHook

    LayerHook(lambda structure: _write(structure, Path(wanted)))
    return True


def read_layers(path: Path) -> Structure:
    """What `tell_layers` wrote into PATH."""
    try:
        return parse_fact(Structure, json.loads(path.read_text()), "layers")
    except (OSError, ValueError) as failed:
        raise BadInput(
            f"{path} holds no layers: {failed}. wattsmith.tell_layers() in a program writes them."
        ) from failed


def _write(structure: Structure, path: Path) -> None:
    part = path.with_name(f"{path.name}.part")  # a reader sees all of it or nothing
    part.write_text(json.dumps(as_plain(structure)))
    part.replace(path)
