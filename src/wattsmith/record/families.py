"""The families of synthetic work, and how a workload becomes a program.

A family is a small builder from named parameters to a network or an operator. `build` is the one way in.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from wattsmith.record.convolutional import CONVOLUTIONAL
from wattsmith.record.family import Family, problems_of
from wattsmith.record.networks import NETWORKS
from wattsmith.record.operators import OPERATORS
from wattsmith.record.program import Piece, Program, Source, dtype_of, tf32_allowed
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Parameter, Workload

FAMILIES: Mapping[str, Family] = {family.name: family for family in (*CONVOLUTIONAL, *NETWORKS, *OPERATORS)}


def family_of(workload: Workload) -> Family:
    """The workload's family, when the workload is one that it can build."""
    family = FAMILIES.get(workload.family)
    if family is None:
        raise BadTerm(f"there is no family {workload.family!r}; there are: {', '.join(FAMILIES)}")
    problems = problems_of(family, workload)
    if problems:
        raise BadTerm(f"{workload.family}: {'; '.join(problems)}")
    return family


def workload_of(name: str, batch: int | None = None, *, parameters: Mapping[str, Parameter], **how: Any) -> Workload:
    """A workload of family NAME; what PARAMETERS and HOW leave out has the family's defaults."""
    family = FAMILIES.get(name)
    if family is None:
        raise BadTerm(f"there is no family {name!r}; there are: {', '.join(FAMILIES)}")
    how.setdefault("mode", family.modes[0])
    if family.updates:
        how.setdefault("optimizer", "adamw")
    return Workload(
        family=name,
        kind=family.kind,
        batch=family.batch.default if batch is None else batch,
        parameters={**{key: allowed.default for key, allowed in family.parameters.items()}, **parameters},
        **how,
    )


def build(workload: Workload, device: str, seed: int = 0, wrap: Callable[[Any], Any] | None = None) -> Program:
    """The workload on a device ("cpu", "cuda:0", "meta"), with random weights and inputs made there from the seed.

    WRAP is given a network's module and gives the one that runs: a data-parallel one, say.
    """
    import torch

    family = family_of(workload)
    casts = family.casts(workload)
    index = torch.device(device)
    forked = [torch.cuda.current_device() if index.index is None else index.index] if index.type == "cuda" else []
    generator = None if device == "meta" else torch.Generator(device=device).manual_seed(seed)
    source = Source(device=device, dtype=torch.float32 if casts else dtype_of(workload.precision), generator=generator)
    with torch.random.fork_rng(devices=forked, enabled=device != "meta"):
        if device != "meta":
            torch.manual_seed(seed)  # modules fill their weights from the global generator, which fork_rng restores
        with torch.device(device):
            piece = family.make(workload, source)
    if piece.module is not None:
        piece = wrapped(piece, workload, source.dtype, wrap)
    return Program(workload, piece, device, casts, tf32_allowed(workload.precision == "tf32"))


def wrapped(piece: Piece, workload: Workload, dtype: Any, wrap: Callable[[Any], Any] | None) -> Piece:
    """The piece with its module in the workload's number format and layout, and wrapped."""
    import torch

    form = torch.channels_last if workload.layout == "channels-last" else torch.preserve_format
    module = piece.module.to(dtype=dtype)
    for one in module.modules():
        if hasattr(one, "flatten_parameters"):
            one.flatten_parameters()  # cast one by one, a recurrent layer's weights lie apart, and are copied each step
    inputs = piece.inputs
    if workload.layout == "channels-last":
        module = module.to(memory_format=form)
        inputs = tuple(one.to(memory_format=form) if one.dim() == 4 else one for one in inputs)
    module.train(workload.mode == "train")
    if wrap is not None:
        module = wrap(module)
    return dataclasses.replace(piece, module=module, run=module, inputs=inputs)
