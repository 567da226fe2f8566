"""What a client prefers (RFC 7240), and the key under which it asks for something once. Pure."""

import hashlib
import re
from collections.abc import Mapping

from gateway.api.exchange.exchange import HttpExchange
from gateway.api.openai.handlers import PREFER
from gateway.domain.errors import BadRequest
from gateway.domain.request import Principal
from gateway.storage.submissions import OnceKey
from shared.process.frozen import frozen

IDEMPOTENCY_KEY = b"idempotency-key"
IDEMPOTENCY_KEY_CHARS = 255
MOST_WAIT_S = 600.0
"""Longest wait for a job in one request."""

_WAIT = re.compile(r"[0-9]{1,9}\Z")
_KEY = re.compile(r"[\x21-\x7e]+\Z")


@frozen
class Preferences:
    """Of one request. What cannot be read is no preference (RFC 7240, section 2)."""

    respond_async: bool = False
    wait_s: float | None = None


def preferences_of(fields: Mapping[bytes, bytes]) -> Preferences:
    """The first of two equal ones counts."""
    given = fields.get(PREFER)
    if given is None:
        return Preferences()
    respond_async, wait_s = False, None
    for each in given.decode("latin-1").lower().split(","):
        name, _, value = (part.strip() for part in each.partition(";")[0].partition("="))
        if name == "respond-async":
            respond_async = True
        elif name == "wait" and wait_s is None and _WAIT.match(value := value.strip('"')):
            wait_s = min(float(value), MOST_WAIT_S)
    return Preferences(respond_async, wait_s)


def idempotency_key_of(fields: Mapping[bytes, bytes]) -> str | None:
    """Raises BadRequest."""
    given = fields.get(IDEMPOTENCY_KEY)
    if given is None:
        return None
    key = given.decode("latin-1").strip()
    if len(key) > IDEMPOTENCY_KEY_CHARS or not _KEY.match(key):
        raise BadRequest(
            f"The header Idempotency-Key has 1 to {IDEMPOTENCY_KEY_CHARS} visible ASCII characters.",
            param="idempotency-key",
            code="invalid_idempotency_key",
        )
    return key


def once_key(exchange: HttpExchange, principal: Principal, asked: bytes) -> OnceKey | None:
    """For a request that makes one thing of what was ``asked``. Raises BadRequest."""
    key = idempotency_key_of(exchange.fields)
    if key is None:
        return None
    fingerprint = hashlib.sha256(f"{exchange.method} {exchange.path}\n".encode() + asked).digest()
    return OnceKey(principal.tenant, key, fingerprint)
