"""The key under which a client asks for something once, however often it sends the request."""

import hashlib
import re
from collections.abc import Mapping

from gateway.api.exchange.exchange import HttpExchange
from gateway.domain.errors import BadRequest
from gateway.domain.request import Principal
from gateway.storage.submissions import OnceKey

IDEMPOTENCY_KEY = b"idempotency-key"
IDEMPOTENCY_KEY_CHARS = 255

_KEY = re.compile(r"[\x21-\x7e]+\Z")


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
