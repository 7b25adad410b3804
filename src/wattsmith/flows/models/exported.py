"""Models from `torch.export`: a program in a .pt2 file."""

from pathlib import Path
from typing import Any

from wattsmith.flows.models.problems import ModelNotLoaded, first_line


def load_exported(path: Path, device: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The module in the file at PATH, moved to DEVICE, and the arguments it was exported with."""
    import torch
    from torch.export.passes import move_to_device_pass

    try:
        program = torch.export.load(str(path))
    except Exception as failed:
        # Reading unpacks an archive, JSON and tensors, each with errors of its own.
        raise ModelNotLoaded(
            f"{path} cannot be read as an exported program ({type(failed).__name__}: {first_line(failed)}). "
            "Export it again with torch.export.save, under a PyTorch no newer than this one."
        ) from failed
    moved = move_to_device_pass(program, device)
    args, named = program.example_inputs or ((), {})
    return moved.module(check_guards=False), tuple(args), dict(named)
