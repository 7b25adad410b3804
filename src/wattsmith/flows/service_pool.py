"""The machines of a service: from a file, as this one is found, or as a Ray cluster has them."""

import math
import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from wattsmith.engines.processes import ProcessEngine
from wattsmith.estimate.sheets import UnknownDevice, sheet_of
from wattsmith.flows.job_runner import RUNNER
from wattsmith.flows.machine import describe_machine
from wattsmith.flows.planning import same_kind, with_sheet
from wattsmith.flows.service_options import ServiceOptions
from wattsmith.schedule.deciding import PoolState, why_over_budget
from wattsmith.schedule.job_files import read_pool
from wattsmith.schedule.needs import SIGMAS
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.jobs import AttemptStatus, JobEngine
from wattsmith.terms.machine import Gpu
from wattsmith.terms.schedule import PoolNode, idle_unknown_of
from wattsmith.terms.service import Document, ServiceStore, check_name

FRESH_S = 10.0  # a report that is older says nothing of now


def nodes_here(meters: str = "auto") -> list[PoolNode]:
    """This machine as a node: its GPUs, or its processor where it has none."""
    machine = describe_machine(meters)
    if not machine.gpus:
        return [PoolNode(name=node_name(), kind="cpu", memory_bytes=machine.memory_bytes or None)]
    kinds = Counter(kind_of(gpu) for gpu in machine.gpus)
    usual = kinds.most_common(1)[0][0]
    alike = [place for place, gpu in enumerate(machine.gpus) if kind_of(gpu) == usual]
    sizes = [gpu.memory_bytes for gpu in machine.gpus if kind_of(gpu) == usual and gpu.memory_bytes]
    node = PoolNode(
        name=node_name(),
        kind=usual,
        count=len(machine.gpus),
        memory_bytes=min(sizes) if sizes else None,
        # A node has devices of one kind; those of another are left alone.
        excluded=tuple(place for place in range(len(machine.gpus)) if place not in alike),
    )
    return [with_sheet(node)]


def node_name() -> str:
    """The name of this machine, as a name of a file."""
    kept = "".join(one if one.isalnum() or one in "._-" else "-" for one in socket.gethostname())
    return kept.lstrip("._-")[:100] or "this-machine"


def kind_of(gpu: Gpu) -> str:
    """The name of a kind of device, as its data sheet has it; job files may use shorter ones."""
    try:
        return sheet_of(gpu.name).name.lower()
    except UnknownDevice:
        return gpu.name.lower()


def engine_for(options: ServiceOptions, owner: str) -> JobEngine:
    """What runs the jobs. OWNER tells a service from others that use the same cluster."""
    name, home, pool, meters = options.engine, options.home, options.pool, options.meters
    if name == "local":
        nodes: Sequence[PoolNode] = (
            nodes_here(meters) if pool is None else [with_sheet(node) for node in read_pool(pool)]
        )
        if len(nodes) > 1:
            raise BadInput(
                f"{pool} names {len(nodes)} machines, and --engine local runs jobs on this one alone; "
                "for several machines start a Ray cluster and give --engine ray"
            )
        for node in nodes:
            check_name("node", node.name)  # it is one of the clients
        return ProcessEngine(home, nodes, RUNNER)
    if name == "ray":
        from wattsmith.engines.ray_jobs import RayJobEngine

        told = [] if pool is None else read_pool(pool)
        if wrong := next((one.name for one in told if one.excluded), None):
            raise BadInput(f"{pool}, {wrong}: Ray gives out all devices of a node; hide some from `ray start` instead")
        dress = partial(as_told, told)
        return RayJobEngine(home, RUNNER, address=options.ray_address, owner=owner, dress=dress)
    raise BadInput(f"there is no engine {name!r}; there are local and ray")


def as_told(told: Sequence[PoolNode], node: PoolNode) -> PoolNode:
    """NODE, of which Ray knows kind and number of devices, and what a pool file says of its name or its kind."""
    mine = next((one for one in told if one.name == node.name), None)
    like = mine or next((one for one in told if same_kind(one.kind, node.kind)), None)
    if like is None:
        return with_sheet(node)
    return with_sheet(
        replace(
            node,
            memory_bytes=like.memory_bytes,
            idle_w=like.idle_w,
            base_w=like.base_w,
            power_limits_w=like.power_limits_w,
        )
    )


def owner_of(store: ServiceStore, now_s: float) -> str:
    """The name of the service whose jobs are in STORE: made up once, and kept there, where the jobs are."""
    kept = store.document("setting", "owner")
    if kept is not None:
        return str(kept.body)
    made = Document(kind="setting", key="owner", serial=0, time_s=now_s, by="wattsmith", body=secrets.token_hex(6))
    return str(store.keep_document(made).body)


def pool_view(state: PoolState, statuses: Mapping[str, AttemptStatus | None]) -> dict[str, Any]:
    """The machines, who uses which device, and the power that this is believed to take."""
    users = {(one.node, place): one for one in state.running.values() for place in one.devices}

    def device(node: PoolNode, place: int) -> dict[str, Any]:
        user = users.get((node.name, place))
        status = None if user is None else statuses.get(user.job.name)
        whole_w = None if status is None else status.power_w
        return {
            "place": place,
            "job": None if user is None else user.job.name,
            "power_w": None if whole_w is None or user is None else whole_w / max(1, len(user.devices)),
            "setting": None if user is None else as_plain(user.point.setting),
            "excluded": place in node.excluded,
        }

    return {
        "nodes": [
            {
                "name": node.name,
                "kind": node.kind,
                "count": node.count,
                "memory_bytes": node.memory_bytes,
                "lost": node.name in state.lost,
                "devices": [device(node, place) for place in range(node.count)],
            }
            for node in state.nodes.values()
        ],
        "budget_w": None if math.isinf(state.budget_w) else state.budget_w,
        "believed_w": state.idle_w + state.drawn_w,
        "over_budget_w": None if math.isinf(state.budget_w) else state.over_w,
        "over_budget_because": why_over_budget(state),
        "idle_unknown_because": idle_unknown_of(node for name, node in state.nodes.items() if name not in state.lost),
        "power_unknown_of": [name for name, one in state.running.items() if not one.power_known],
        "guard_w": SIGMAS * math.sqrt(max(0.0, state.square)),
        "waiting": len(state.waiting),
        "running": len(state.running),
    }


def measured_w(store: ServiceStore, nodes: Iterable[str], now_s: float) -> float | None:
    """What those of NODES draw that have been heard of just now; None: none has, or none can tell."""
    known = []
    for name in nodes:
        client = store.client(name)
        if client is not None and client.latest is not None and now_s - client.last_seen_s < FRESH_S:
            known += [one.power_w for one in client.latest.domains.values() if one.power_w is not None]
    return sum(known) if known else None
