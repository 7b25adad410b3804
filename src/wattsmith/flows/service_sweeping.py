"""What a service forgets: old telemetry, and what was decided long ago. Jobs, the audit log and the record stay."""

import threading
from collections.abc import Callable
from functools import partial

from wattsmith.flows.service_options import ServiceOptions
from wattsmith.terms.errors import WattsmithError
from wattsmith.terms.service import ServiceStore

EVERY_S = 600.0
BREATH_S = 0.05  # between two goes, in which others write
# Of a schedule and a setting the last one holds, however old it is; traced steps belong to jobs, and stay.
SUPERSEDED = ("schedule", "setting")
DECIDED = ("match", "plan")


class Sweeper:
    """A thread of its own: there may be much to forget, and jobs do not wait for it."""

    def __init__(self, store: ServiceStore, options: ServiceOptions, *, now_s: Callable[[], float]) -> None:
        self._store = store
        self._options = options
        self._now_s = now_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="sweeper", daemon=True)
        self.trouble: str | None = None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def sweep(self) -> int:
        """Forget what is too old now; how much."""
        now_s, keep = self._now_s(), self._options
        decided_s = now_s - keep.keep_decided_s
        drops = [partial(self._store.drop_reports, now_s - keep.retention_s, most=keep.most_reports)]
        drops += [partial(self._store.drop_documents, kind, decided_s) for kind in SUPERSEDED]
        drops += [partial(self._store.drop_documents, kind, decided_s, last_too=True) for kind in DECIDED]
        return sum(self._all(drop) for drop in drops)

    def _all(self, drop: Callable[[], int]) -> int:
        forgotten = 0
        while not self._over.is_set() and (gone := drop()):
            forgotten += gone
            self._over.wait(BREATH_S)
        return forgotten

    def _go_on(self) -> None:
        while not self._over.is_set():
            try:
                self.sweep()
                self.trouble = None
            except WattsmithError as away:  # the database: it will come back, and so does this thread
                self.trouble = str(away)
            self._over.wait(EVERY_S)
