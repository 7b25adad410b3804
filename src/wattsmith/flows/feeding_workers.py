"""Data workers for a trainer on another machine."""

import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path

from wattsmith.feed.pool import Pool
from wattsmith.feed.remote import token_in
from wattsmith.feed.remote_address import parse_address
from wattsmith.feed.remote_greeting import checked_token, new_token, read_token, write_token
from wattsmith.feed.remote_worker import PATIENCE_S, work_for
from wattsmith.terms.errors import BadInput, NotWritten

__all__ = ["PATIENCE_S", "make_token", "share_pool", "work"]

Say = Callable[[str], None]
FROM_INPUT = Path("-")


def make_token(path: Path) -> None:
    """Write a new token to PATH, for nobody else to read. Refuses to replace one."""
    if path.exists():
        raise NotWritten(f"{path} is there already; remove it, or choose another file")
    write_token(path, new_token())


def share_pool(address: str, token_file: Path, workers: int, *, say: Say) -> None:
    """Divide WORKERS among the jobs that ask, until interrupted. A token is made where there is none."""
    pool = Pool(address, token_in(token_file), workers, say=say)
    say(f"{workers} workers to be shared, asked for at {pool.address}")
    try:
        pool.serve()
    except KeyboardInterrupt:
        pool.close()


def work(
    address: str, token_file: Path, *, workers: int = 1, once: bool = False, patience_s: float = PATIENCE_S, say: Say
) -> None:
    """Make batches for the feeder at ADDRESS, in so many processes, until it needs no more."""
    parse_address(address)
    token = checked_token(sys.stdin.read().strip(), "input") if token_file == FROM_INPUT else read_token(token_file)
    if workers == 1:
        work_for(address, token, patience_s=patience_s, once=once, say=say)
        return
    # Fresh processes: each is as one that was started by hand, whatever this one has loaded.
    context = multiprocessing.get_context("spawn")
    crew = [
        context.Process(target=_work_in, args=(address, token, patience_s, once), daemon=True) for _ in range(workers)
    ]
    for process in crew:
        process.start()
    for process in crew:
        process.join()
    failed = sum(process.exitcode != 0 for process in crew)
    if failed:
        raise BadInput(f"{failed} of {workers} workers ended with an error; what they said is above")


def _work_in(address: str, token: str, patience_s: float, once: bool) -> None:
    work_for(address, token, patience_s=patience_s, once=once)
