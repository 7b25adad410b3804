"""Which nodes depend on what lasts from step to step, which draw at random, and which must stay together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wattsmith.split.effects import draws, is_opaque, parts_of, written
from wattsmith.split.marks import crossing_here
from wattsmith.split.problems import NotSplittable
from wattsmith.split.traced import CONSTANT, GRAPH, OBJECT, STATE, Attribute, Traced

LARGE_BYTES = 64 * 2**20  # of a constant that workers get no copy of, unless they are told to
INPUT, FIXED, DRAWN, OPAQUE, FREE, TAINTED = "input", "constant", "random", "opaque", "free", "state"


@dataclass(slots=True)
class Roles:
    """What every node is, and what follows for where it may run."""

    kinds: dict[Any, str] = field(default_factory=dict)
    origin: dict[Any, str] = field(default_factory=dict)  # of tainted nodes: the state that they depend on, and why
    on_data: dict[Any, str] = field(default_factory=dict)  # nodes that must run on the data side, and why
    on_training: dict[Any, str] = field(default_factory=dict)  # nodes that must run with training, and why
    together: list[list[Any]] = field(default_factory=list)  # nodes that write into one tensor, or read it in between
    written_inputs: set[Any] = field(default_factory=set)  # placeholders that are written into
    writers: dict[Any, list[Any]] = field(default_factory=dict)  # node: those that write into its tensor
    constants: dict[str, Attribute] = field(default_factory=dict)  # attributes that were found not to change


def roles_of(traced: Traced, changed: Mapping[str, str], allow_frozen: bool) -> Roles:
    """CHANGED: tensors that one real step changed. ALLOW_FROZEN: weights that do not train may go to the data side."""
    roles = Roles()
    nodes = traced.nodes()
    groups = _groups(traced, nodes)
    _attributes(traced, nodes, groups, changed, allow_frozen, roles)
    for _ in range(len(nodes)):
        if not _spread(traced, nodes, groups, roles):
            break
    if _uncoupled(traced, groups, roles):
        return roles_of(traced, changed, allow_frozen)
    _marks(nodes, roles)
    _sides(nodes, roles)
    return roles


class Groups:
    """Nodes whose tensors may share memory, and who writes into it."""

    def __init__(self, nodes: list[Any]) -> None:
        self.order = {node: at for at, node in enumerate(nodes)}
        self._parent = {node: node for node in nodes}
        self.writers: dict[Any, list[Any]] = {}  # root: nodes that write into the group
        self.members: dict[Any, list[Any]] = {}

    def root(self, node: Any) -> Any:
        while self._parent[node] is not node:
            node = self._parent[node]
        return node

    def join(self, one: Any, other: Any) -> None:
        self._parent[self.root(one)] = self.root(other)

    def last_write(self, root: Any) -> int:
        return max(self.order[one] for one in self.writers[root])

    def first_write(self, root: Any) -> int:
        return min(self.order[one] for one in self.writers[root])


def _groups(traced: Traced, nodes: list[Any]) -> Groups:
    groups = Groups(nodes)
    modules = {name: one.value for name, one in traced.attributes.items()}
    for node in nodes:
        for part in parts_of(node, modules.get(str(node.target))):
            groups.join(node, part)
    for node in nodes:
        for one in written(node, modules.get(str(node.target))):
            groups.writers.setdefault(groups.root(one), []).append(node)
    for node in nodes:
        if (root := groups.root(node)) in groups.writers:
            groups.members.setdefault(root, []).append(node)
    return groups


def _attributes(
    traced: Traced, nodes: list[Any], groups: Groups, changed: Mapping[str, str], allow_frozen: bool, roles: Roles
) -> None:
    for node in nodes:
        if node.op != "get_attr":
            continue
        attribute = traced.attributes[node.target]
        why = state_reason(attribute, changed, allow_frozen, groups.root(node) in groups.writers)
        if why is not None:
            roles.kinds[node] = TAINTED
            roles.origin[node] = f"{attribute.name}, {why}"
        else:
            roles.kinds[node] = FIXED
            if attribute.kind in (STATE, CONSTANT):
                roles.constants[node.target] = attribute


def state_reason(attribute: Attribute, changed: Mapping[str, str], allow_frozen: bool, is_written: bool) -> str | None:
    """Why ATTRIBUTE lasts from step to step and changes; None: it is a constant."""
    import torch
    from torch.nn.modules.batchnorm import _NormBase

    if attribute.kind in (GRAPH, OBJECT):
        return None
    if getattr(attribute.value, "requires_grad", False):
        return "which is trained"
    if is_written:
        return "which the step writes into"
    if attribute.name in changed:
        return f"which is {changed[attribute.name]}"
    if allow_frozen:
        return None
    if isinstance(attribute.value, torch.nn.Parameter):
        return "a weight that is not trained; frozen=True lets such weights move"
    if isinstance(attribute.owner, _NormBase):
        return "a running statistic; frozen=True lets such move if they stay as they are"
    size_bytes = attribute.value.numel() * attribute.value.element_size()
    if size_bytes > LARGE_BYTES:
        return f"{size_bytes >> 20} MiB that every worker would have to hold; frozen=True lets such move"
    return None


def _spread(traced: Traced, nodes: list[Any], groups: Groups, roles: Roles) -> bool:
    """One pass of taint, chance and constancy along the graph; whether anything is new."""
    before = dict(roles.kinds)
    modules = {name: one.value for name, one in traced.attributes.items()}
    tainted_groups: dict[Any, str] = {}
    alive: set[Any] = set()  # groups that something other than constants writes into
    for node in nodes:
        for root in {groups.root(one) for one in written(node, modules.get(str(node.target)))}:
            if roles.kinds.get(node) == TAINTED:
                tainted_groups.setdefault(root, roles.origin[node])
            if roles.kinds.get(node, FIXED) != FIXED:
                alive.add(root)
    for node in nodes:
        if roles.kinds.get(node) == TAINTED or node.op == "get_attr":
            continue
        kind, origin = _kind(node, modules, roles)
        root = groups.root(node)
        if kind != INPUT and root in tainted_groups:
            kind, origin = TAINTED, tainted_groups[root]
        for one in node.all_input_nodes:
            taken = groups.root(one)
            if taken in tainted_groups and groups.order[node] > groups.first_write(taken):
                kind, origin = TAINTED, tainted_groups[taken]
        if kind == FIXED and root in alive:
            kind = FREE
        roles.kinds[node] = kind
        if kind == TAINTED:
            roles.origin[node] = origin
    roles.written_inputs = {one for many in groups.members.values() for one in many if one.op == "placeholder"}
    roles.writers = {one: groups.writers[root] for root, many in groups.members.items() for one in many}
    roles.together = [_together(root, many, groups, roles) for root, many in groups.members.items()]
    return roles.kinds != before


def _uncoupled(traced: Traced, groups: Groups, roles: Roles) -> bool:
    """Training that reads data which is written into later gets a copy of what it was then; whether any did."""
    import torch

    done = False
    for root, members in groups.members.items():
        last = groups.last_write(root)
        for one in [one for one in members if roles.kinds[one] not in (TAINTED, FIXED)]:
            for user in [user for user in one.users if user.op != "output" and roles.kinds[user] == TAINTED]:
                if groups.order[user] <= last and user not in groups.writers[root]:
                    with traced.graph.inserting_before(user):
                        copy = traced.graph.call_function(torch.ops.aten.clone.default, (one,))
                    copy.meta.update(line=user.meta.get("line"), val=one.meta.get("val"))
                    user.replace_input_with(one, copy)
                    done = True
    return done


def _together(root: Any, members: list[Any], groups: Groups, roles: Roles) -> list[Any]:
    last = groups.last_write(root)
    inside = {*groups.writers[root]}
    for one in members:
        if groups.order[one] <= last and one.op not in ("placeholder", "get_attr"):
            inside.add(one)
        inside |= {user for user in one.users if user.op != "output" and groups.order[user] <= last}
    return sorted((one for one in inside if roles.kinds.get(one) != FIXED), key=groups.order.__getitem__)


def _kind(node: Any, modules: Mapping[str, Any], roles: Roles) -> tuple[str, str]:
    if node.op == "placeholder":
        return INPUT, ""
    taken = [roles.kinds.get(one, FIXED) for one in node.all_input_nodes]
    if TAINTED in taken:
        return TAINTED, roles.origin[node.all_input_nodes[taken.index(TAINTED)]]
    if node.op == "call_module" and (reason := _module_state(node, modules[str(node.target)])):
        return TAINTED, reason
    if is_opaque(node):
        return OPAQUE, ""
    if draws(node, modules.get(str(node.target))):
        return DRAWN, ""
    return (FIXED, "") if all(kind == FIXED for kind in taken) else (FREE, "")


def _module_state(node: Any, module: Any) -> str | None:
    """Of a layer that torch.fx did not look into: its first tensor, which stays with training."""
    for name, one in [*module.named_parameters(), *module.named_buffers()]:
        return f"{node.target}.{name}, " + ("which is trained" if one.requires_grad else "which a layer holds")
    return None


def _marks(nodes: list[Any], roles: Roles) -> None:
    """What the user marked with boundary(...) is sent, and what follows from it stays with training."""
    after: set[Any] = set()
    for node in nodes:
        if node.target is crossing_here:
            source = node.args[0]
            if roles.kinds[source] == TAINTED:
                raise NotSplittable(
                    f"wattsmith.boundary marks something that depends on {roles.origin[source]}"
                    + (f", at {line}" if (line := node.meta.get("line")) else "")
                    + ". Mark what does not depend on the weights."
                )
            if roles.kinds[source] != FIXED:
                roles.on_data[source] = "marked by boundary"
            after.add(node)
        elif roles.kinds[node] != FIXED and any(one in after for one in node.all_input_nodes):
            after.add(node)
    for node in after:
        roles.on_training[node] = "comes after the boundary"


def _sides(nodes: list[Any], roles: Roles) -> None:
    for node in nodes:
        kind = roles.kinds[node]
        if kind == TAINTED:
            roles.on_training[node] = f"depends on {roles.origin[node]}"
        elif kind == INPUT:
            roles.on_data[node] = "the batch"
        elif node in roles.on_training:
            continue
        elif (device := _device(node)) not in (None, "cpu"):
            roles.on_training[node] = f"is on {device}, which workers do not have"
        elif str(node.target).startswith(("requires_grad", "aten.requires_grad")):
            roles.on_training[node] = "asks for gradients of the data"
        elif kind == DRAWN:
            roles.on_data[node] = "draws at random, from the batch's seed"
        elif kind == OPAQUE:
            roles.on_data[node] = "an opaque step"
    late = [one for one in nodes if one in roles.on_data and one in roles.on_training]
    if late:
        raise NotSplittable(f"{late[0]} is marked as data and comes after another boundary")


def _device(node: Any) -> str | None:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, list | tuple) and value else value
    device = getattr(value, "device", None)
    return None if device is None else str(device)
