"""Who measures the machines of a service and sets them: itself the one it runs on, agents those of a cluster."""

from collections.abc import Callable, Sequence
from typing import Protocol

from wattsmith.flows.service_nodes import NodeWatch
from wattsmith.flows.service_options import OnePost, ServiceOptions
from wattsmith.terms.schedule import PoolNode
from wattsmith.terms.service import ClientAbout
from wattsmith.terms.work_schedule import WorkSchedule


class Watch(Protocol):
    """Reports of nodes every second, and their work schedules carried out."""

    @property
    def trouble(self) -> str | None: ...

    def accept(self, schedule: WorkSchedule) -> None:
        """Have the node whose it is follow SCHEDULE. Returns at once."""

    def close(self) -> None:
        """Stop, and give every setting back."""


def watch_nodes(
    options: ServiceOptions,
    nodes: Sequence[PoolNode],
    owner: str,
    *,
    now_s: Callable[[], float],
    keep: Callable[[Sequence[OnePost]], object],
    hello: Callable[[str, ClientAbout], None],
) -> Watch | None:
    """Whoever watches NODES; None: nobody is to, or they are not those of the machine that the service runs on."""
    if not options.watch:
        return None
    if options.engine == "ray":
        from wattsmith.flows.service_ray import ClusterWatch

        return ClusterWatch(
            address=options.ray_address, owner=owner, meters=options.meters, now_s=now_s, keep=keep, hello=hello
        )
    if len(nodes) != 1:
        return None
    return NodeWatch(
        nodes[0].name,
        meters=options.meters,
        now_s=now_s,
        keep=lambda client, report: keep([OnePost(client=client, reports=[report])]),
        hello=lambda client, telemetry: hello(client, telemetry.about),
    )
