"""The halves as they are used: the data half out of its own file, the training half beside the user's weights."""

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from wattsmith.split.cutting import CutGraphs
from wattsmith.split.giving import as_given
from wattsmith.split.graphfile import Packed, packed_graph
from wattsmith.split.halves import KIND, VERSION, Copied, SavedHalf, Setting, loads, sealed, training_half
from wattsmith.split.handing import is_tensor
from wattsmith.split.keeping import Place, frozen_by_a_trace
from wattsmith.split.pricing import is_alike
from wattsmith.split.roles import OPAQUE, Roles
from wattsmith.split.running import Seen
from wattsmith.split.state import is_a_class_of_the_users
from wattsmith.split.traced import CONSTANT, ONE_IS_SPECIAL, STATE, Attribute, Traced

SIZES = "sizes_of_the_batch"  # what crosses last where the cut was made by hand
_SIZE = re.compile(r"L\['given'\]\[(\d+)\]\.size\(\)\[(\d+)\]")


def assembled(
    traced: Traced, roles: Roles, graphs: CutGraphs, seen: dict[Any, Seen], watched: Any, by_hand: Any = None
) -> tuple[SavedHalf, Any, Packed]:
    """The data half, the training half, and what was packed into the former. BY_HAND: runs training untraced."""
    packed = Packed()
    used = {node.name for node in graphs.data.nodes}
    ours = [node for node in traced.nodes() if node.name in used and node in seen]
    unlike = [node.name for node in ours if not is_alike(node, seen[node])]
    written = data_file(traced, roles, graphs, watched, packed, unlike)
    return loads(written), _training(traced, roles, graphs, watched, by_hand), packed


def hard_guards(traced: Traced, watched: Any) -> list[str]:
    """Conditions on sizes that decide which way the step goes, by name.

    That a size is not one is left out: tracers take that for granted of every size, and graphs work with one too. The
    comparison with the step on one and two samples tells where they do not.
    """
    inputs = _inputs(watched)
    named = [_SIZE.sub(lambda found: f"size_{inputs[int(found[1])]}_{found[2]}", one) for one in traced.guards]
    return [one for one in named if not ONE_IS_SPECIAL.search(one)]


def _inputs(watched: Any) -> list[int]:
    return [at for at, leaf in enumerate(watched.leaves) if leaf.kind != "constant"]


def data_file(
    traced: Traced, roles: Roles, graphs: CutGraphs, watched: Any, packed: Packed, unlike: list[str]
) -> bytes:
    """The data half as its file has it."""
    import torch

    inputs = _inputs(watched)
    places = [one for one in traced.graph.nodes if one.op == "placeholder"]
    leaf_of = {node.name: inputs[at] for at, node in enumerate(places)}
    sizes = dict(zip(inputs, traced.sizes, strict=False))
    nodes = packed_graph(graphs.data, traced.attributes, packed)
    facts = {
        "kind": KIND,
        "version": VERSION,
        "torch": torch.__version__,
        "fractions": str(torch.get_default_dtype()).removeprefix("torch."),
        "structure": watched.structure,
        "leaves": [
            {
                "kind": leaf.kind,
                "path": leaf.path,
                "constant": leaf.constant,
                "dtype": leaf.dtype,
                "sizes": sizes.get(at),
            }
            for at, leaf in enumerate(watched.leaves)
        ],
        "guards": hard_guards(traced, watched),
        "inputs": [leaf_of[node.name] for node in graphs.data.nodes if node.op == "placeholder"],
        "written": sorted(leaf_of[node.name] for node in roles.written_inputs),
        "opaque": any(kind == OPAQUE for kind in roles.kinds.values()),
        "crossing": [node.name for node in graphs.crossing] + ([SIZES] if graphs.training is None else []),
        "needs": sorted(packed.needs),
        "unlike": unlike,
        "nodes": nodes,
    }
    return sealed({"facts": json.dumps(facts), "tensors": packed.tensors, "pickled": packed.pickled})


def _training(traced: Traced, roles: Roles, graphs: CutGraphs, watched: Any, by_hand: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_unflatten

    run = by_hand or torch.fx.GraphModule(torch.nn.Module(), graphs.training)
    outputs, form = list(traced.outputs), traced.output_form

    def finish(given: Any) -> Any:
        if by_hand is not None:
            return as_given(given)
        return as_given(tree_unflatten([given[what] if kind == "node" else what for kind, what in outputs], form))

    used = {node.target for node in graphs.data.nodes if node.op == "get_attr"}
    copied = [
        Copied(
            name=one.name, value=_finder(one, watched), was=one.value.detach().cpu().clone(), version=one.value._version
        )
        for target, one in roles.constants.items()
        if target in used and one.kind in (STATE, CONSTANT)
    ]
    for reached in watched.held.opaque.values():
        copied += [
            Copied(name=name, value=partial(_same, one), was=one.detach().cpu().clone(), version=one._version)
            for name, one in reached.tensors().items()
        ]
    finders = [_finder(traced.attributes[name], watched) for name in graphs.attributes]
    return training_half(_root(watched), run, finders, finish, copied, _settings(watched, by_hand is not None))


def _settings(watched: Any, by_hand: bool) -> list[Setting]:
    """What must stay as it is: modes of modules and, where the step was traced, the numbers and texts that it reads."""
    held = watched.held
    modules = [
        (Place(name, vars(module)), module)
        for name, module in held.every_module().items()
        if "training" in vars(module)
    ]
    if by_hand:
        return [Setting(place, {"training": one.training}) for place, one in modules]
    # Of a layer of PyTorch's all counts; of the user's own objects what the step's functions name.
    places, named = held.read_by_step
    names = named | {"training"}
    settings: list[tuple[Place, dict[Any, Any]]] = []
    for place, module in modules:
        values = frozen_by_a_trace(place, names if is_a_class_of_the_users(type(module)) else None)
        # Tensors of a module are looked up anew in every step.
        settings.append((place, {key: one for key, one in values.items() if not is_tensor(one)}))
        settings.append((Place(place.name, module._modules), dict(module._modules)))
    settings += [(place, frozen_by_a_trace(place, names if place.keys is None else None)) for place in places]
    but = watched.keeps.overwritten
    kept = [
        (place, {key: one for key, one in those.items() if place.named(key) not in but}) for place, those in settings
    ]
    return [Setting(place, those) for place, those in kept if those]


def _same(one: Any) -> Any:
    return one


def _finder(attribute: Attribute, watched: Any) -> Callable[[], Any]:
    """Looks ATTRIBUTE up where its owner has it now, so that moved and reloaded modules are followed."""
    if attribute.kind in (STATE, CONSTANT) and attribute.owner is not None:
        owner, name = attribute.owner, attribute.name.rpartition(".")[2]
        return lambda: getattr(owner, name)
    if attribute.kind == "object" and type(attribute.value).__name__ in ("Generator", "FakeScriptObject"):
        generators = watched.held.generators
        return lambda: generators[0]
    value = attribute.value
    return lambda: value


def _root(watched: Any) -> Any:
    import torch

    modules = watched.held.modules
    if "" in modules:
        return modules[""]
    root = torch.nn.Module()
    for name, module in modules.items():
        root.add_module(name.replace(".", "_"), module)
    for name, one in watched.held.loose.items():
        if isinstance(one, torch.nn.Parameter):
            root.register_parameter(name.replace(".", "_"), one)
    return root
