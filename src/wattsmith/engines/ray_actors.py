"""Data workers as Ray actors: Ray places, starts, restarts and stops them; batches go over the feeder's own sockets."""

from typing import Any

from wattsmith.terms.engines import Work
from wattsmith.terms.errors import BadTerm, ExtraNeeded


class RayEngine:
    """Workers on the Ray cluster that this process is connected to, or, if to none, on the one it finds or starts.

    CPUS: of a worker, for Ray's book of what is free. SPREAD: over the nodes rather than one node after the other.
    """

    def __init__(self, *, cpus: float = 1.0, spread: bool = True) -> None:
        if cpus <= 0:
            raise BadTerm(f"cpus must be positive, got {cpus}")
        self._ray = _ray()
        if not self._ray.is_initialized():
            self._ray.init(log_to_driver=False)
        # A worker that dies before it has connected is started again by Ray, wherever there is room; one that dies
        # later is noticed by the trainer first, which stops it here and starts another.
        self._actor = self._ray.remote(
            num_cpus=cpus,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy="SPREAD" if spread else "DEFAULT",
        )(_Worker)

    def host(self) -> str:
        return str(self._ray.util.get_node_ip_address())

    def start(self, work: Work, address: str, token: str) -> Any:
        actor = self._actor.remote()
        actor.run.remote(work, address, token)
        return actor

    def stop(self, handle: Any) -> None:
        if self._ray.is_initialized():
            self._ray.kill(handle, no_restart=True)


class _Worker:
    """Runs in a process of Ray's."""

    def run(self, work: Work, address: str, token: str) -> None:
        work(address, token)


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as missing:
        raise ExtraNeeded("engine 'ray' needs Ray; install it with `pip install 'wattsmith[ray]'`") from missing
    return ray
