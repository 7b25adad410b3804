"""What starts data workers elsewhere agrees on."""

from collections.abc import Callable
from typing import Any, Protocol

Work = Callable[[str, str], None]  # what a worker does: address and token in, and back when the trainer has no more


class WorkerEngine(Protocol):
    """Places, starts and stops workers. It carries no data: workers connect to the trainer by themselves.

    Found by name through the entry points `wattsmith.engines`: `Feeder(..., engine="ray")`.
    """

    def host(self) -> str:
        """The name or number under which workers reach this process: "127.0.0.1" where they run on this machine."""

    def start(self, work: Work, address: str, token: str) -> Any:
        """Start a worker that does WORK(address, token), wherever there is room. Returns at once, with a handle."""

    def stop(self, handle: Any) -> None:
        """The worker of HANDLE is not needed any more, or has gone. Never raises for one that is not there."""
