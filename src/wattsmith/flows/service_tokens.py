"""Who may do what: tokens made, known again and revoked; and who changed what."""

import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from wattsmith.store.opening import open_service_store
from wattsmith.terms.errors import Conflict, NoSuch
from wattsmith.terms.service import AuditEntry, Role, ServiceStore, Token

By = Token | str  # who does something: the bearer of a token, or a command on the machine of the service


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens in a store. All may be called from any thread."""

    store: ServiceStore
    now_s: Callable[[], float] = time.time

    def whoami(self, text: str) -> Token | None:
        """Whose token TEXT is, revoked ones included; None: nobody's."""
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        if prefix != "ws" or not token_id or not secret or not text.isascii():
            return None
        found = self.store.token(token_id)
        # Compared in the same time whether there is such a token or not.
        known = found[1] if found is not None else bytes(32)
        same = hmac.compare_digest(hashlib.sha256(secret.encode()).digest(), known)
        return found[0] if found is not None and same else None

    def add_token(self, name: str, role: Role, by: By) -> tuple[Token, str]:
        """A new token, and its text, which nobody can tell again."""
        secret = secrets.token_urlsafe(32).replace("_", "-")
        token = Token(id=secrets.token_hex(6), name=name, role=Role(role), created_s=self.now_s())
        self.store.add_token(token, hashlib.sha256(secret.encode()).digest())
        self.audit(by, "add token", token.name, role=str(role), id=token.id)
        return token, f"ws_{token.id}_{secret}"

    def revoke_token(self, token_id: str, by: By) -> None:
        found = self.store.token(token_id)
        if found is None:
            raise NoSuch(f"there is no token {token_id!r:.80}")
        if not self.store.revoke(token_id, self.now_s()):
            raise Conflict(f"the token {token_id} was revoked before")
        self.audit(by, "revoke token", found[0].name, id=token_id)

    def tokens(self) -> list[Token]:
        return self.store.tokens()

    def audit(self, by: By, what: str, on: str, **detail: Any) -> None:
        """Write down who did WHAT."""
        who = by if isinstance(by, str) else by.name
        self.store.audit(AuditEntry(time_s=self.now_s(), who=who, what=what, on=on, detail=detail))


@contextlib.contextmanager
def open_tokens(db: str) -> Iterator[Tokens]:
    """The tokens in the database of a service, whether it runs or not."""
    store = open_service_store(db)
    try:
        yield Tokens(store=store)
    finally:
        store.close()
