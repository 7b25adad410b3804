"""Tokens that were found to hold a moment ago: requests come by the hundred each second, tokens change once a month."""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from wattsmith.flows.service_tokens import By, Tokens
from wattsmith.terms.errors import NotRead
from wattsmith.terms.service import Token

RECHECK_S = 0.8  # what another process revokes is refused within a second
MOST = 20_000
FAILED_S = 0.5  # a database that did not answer is not asked again by everybody who waited meanwhile


class KnownTokens:
    """Remembers tokens that hold. What is revoked here is forgotten at once; all are checked again once a second."""

    def __init__(self, tokens: Tokens, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._clock_s = clock_s
        self._known: OrderedDict[bytes, Token] = OrderedDict()  # by the hash of the whole text
        self._checked_s = clock_s()
        self._failed: tuple[float, str] | None = None
        self._revoked = 0  # times that something was revoked here
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # of who asks the database, which may take long

    def at_once(self, text: str) -> Token | None:
        """Whose token TEXT is, if that is known without asking the database. Never waits."""
        with self._lock:
            fresh = self._clock_s() - self._checked_s <= RECHECK_S
            return self._known.get(_mark(text)) if fresh else None

    def whoami(self, text: str) -> Token | None:
        """Whose token TEXT is, revoked ones included; None: nobody's."""
        self._check_again()
        if (known := self.at_once(text)) is not None:
            return known
        with self._lock:
            revoked = self._revoked
        found = self._tokens.whoami(text)
        if found is not None and found.revoked_s is None:
            with self._lock:
                if revoked == self._revoked:  # else it may have been this one, while it was looked for
                    self._known[_mark(text)] = found
                    while len(self._known) > MOST:
                        self._known.popitem(last=False)
        return found

    def revoke(self, token_id: str, by: By) -> None:
        """Revoke a token; it is refused from now on."""
        try:
            self._tokens.revoke_token(token_id, by)
        finally:  # also where it is not known whether the database has it
            with self._lock:
                self._revoked += 1
                self._known = OrderedDict((mark, one) for mark, one in self._known.items() if one.id != token_id)

    def _check_again(self) -> None:
        """Forget what was revoked elsewhere, if it is time to look. Raises NotRead."""
        with self._turn:
            began_s = self._clock_s()
            with self._lock:
                if began_s - self._checked_s <= RECHECK_S:
                    return
                known = bool(self._known)
            if self._failed is not None and began_s - self._failed[0] < FAILED_S:
                raise NotRead(self._failed[1])
            try:
                holding = {one.id for one in self._tokens.tokens() if one.revoked_s is None} if known else set()
            except NotRead as away:
                self._failed = (self._clock_s(), str(away))
                raise
            with self._lock:
                self._known = OrderedDict((mark, one) for mark, one in self._known.items() if one.id in holding)
                self._checked_s = began_s


def _mark(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
