"""A Ray cluster as a pool: reaching it, and its nodes as ours."""

import logging
import string
from collections import Counter
from dataclasses import dataclass
from typing import Any

from wattsmith.terms.errors import BadInput, ExtraNeeded
from wattsmith.terms.schedule import PoolNode

NAMESPACE = "wattsmith"  # of the actors that outlive who made them
OWN_KIND = "wattsmith_kind:"  # a resource of a node, such as "wattsmith_kind:h200", says what kind its devices are
RAYS_KIND = "accelerator_type:"  # and so does Ray's own
UNNAMED_KIND = "gpu"
CPU = "cpu"
NAME_LETTERS = frozenset(f"{string.ascii_letters}{string.digits}._-")  # of what can be called like a file
A_BIT = 0.001  # of a resource, so that hundreds can ask for it: they want to be where it is


def connect(address: str | None) -> tuple[Any, bool]:
    """Ray, connected, and whether that was done here. ADDRESS None: of the cluster that runs on this machine."""
    try:
        import ray
    except ModuleNotFoundError as missing:
        raise ExtraNeeded("engine 'ray' needs Ray; install it with `pip install 'wattsmith[ray]'`") from missing
    if ray.is_initialized():
        return ray, False
    try:
        ray.init(address=address or "auto", namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as absent:
        # Not one of our own: jobs would end with the process that started it.
        where = f"at {address}" if address else "on this machine"
        raise BadInput(
            f"no Ray cluster answers {where}; start one with `ray start --head`, or, if it asks for a token, give the "
            "token that it was started with: RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
        ) from absent
    return ray, True


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node as Ray knows it."""

    id: str
    alive: bool
    cpus: int
    pool: PoolNode | None  # None: jobs cannot use it
    kind_resource: str | None = None  # to be asked for by whoever wants its kind of device


def ray_nodes(ray: Any) -> list[RayNode]:
    """All nodes that the cluster has, and had lately."""
    rows = ray.nodes()
    living = Counter(name_of(row) for row in rows if row["Alive"])
    return [_node(row, own_name_of(row) if living[name_of(row)] > 1 else name_of(row)) for row in rows]


def _node(row: dict[str, Any], name: str) -> RayNode:
    resources = row.get("Resources") or {}
    cards, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
    resource = next((name for name in sorted(resources, reverse=True) if name.startswith((OWN_KIND, RAYS_KIND))), None)
    kind = CPU if not cards else UNNAMED_KIND if resource is None else resource.partition(":")[2].lower()
    count = cards or cpus
    return RayNode(
        id=row["NodeID"],
        alive=bool(row["Alive"]),
        cpus=cpus,
        pool=PoolNode(name=name, kind=kind, count=count) if count else None,
        kind_resource=resource if cards else None,
    )


def name_of(row: dict[str, Any]) -> str:
    """The name that it was given, which others may bear too, or one of its own."""
    given, address = row.get("NodeName"), row.get("NodeManagerAddress")
    return _as_name(str(given)) if given and given != address else own_name_of(row)


def own_name_of(row: dict[str, Any]) -> str:
    """A name that no other node of the cluster has, and by which a person still finds the machine."""
    return f"{_as_name(str(row['NodeManagerHostname']))}-{row['NodeID'][:8]}"


def _as_name(text: str) -> str:
    kept = "".join(one if one in NAME_LETTERS else "-" for one in text).lstrip("._-")
    return kept[:90] or "node"
