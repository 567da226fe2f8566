"""What one process shows when it asks another one of its gateway, and how the answer is vouched for. Pure.

Both know a key that is derived from the cluster key, so whoever has only the database, or an API key, has it
not. A token counts for one path of one process, and for a short time on the store's clock: hosts' clocks may
differ.
"""

import hmac
import secrets
from hashlib import sha256

TOKEN_S = 30.0
"""A token counts for so long; as early it may be, where one process knows the store's clock less well."""

_NONCE_BYTES = 16
_TOKEN_CHARS = 200


class BadProcessToken(Exception):
    """Whoever asks is no process of this gateway, or asks too late."""


def make_token(key: bytes, process: str, target: str, now: float) -> str:
    """To ask ``process`` for ``target``, path and query, at ``now``, in seconds of the store's clock."""
    until, nonce = f"{now + TOKEN_S:.3f}", secrets.token_hex(_NONCE_BYTES)
    return f"{until}~{nonce}~{_mac(key, b'ask', until, nonce, process, target)}"


def check_token(key: bytes, token: str, process: str, target: str, now: float) -> None:
    """Raises BadProcessToken."""
    until, _, rest = token.partition("~")
    nonce, _, mac = rest.partition("~")
    if len(token) > _TOKEN_CHARS or not token.isascii():
        raise BadProcessToken("this is no token of a process")
    if not hmac.compare_digest(mac, _mac(key, b"ask", until, nonce, process, target)):
        raise BadProcessToken("the token is of another gateway, or for something else")
    if not now < float(until) < now + 2 * TOKEN_S:
        raise BadProcessToken("the token is too old, or the two processes know different times")


def sign_answer(key: bytes, token: str, body: bytes) -> str:
    """Vouches for what is answered to the request with this token."""
    return _mac(key, b"answer", token, sha256(body).hexdigest())


def is_signed(key: bytes, token: str, body: bytes, signature: str) -> bool:
    """Whether a process of this gateway answered so."""
    return signature.isascii() and hmac.compare_digest(signature, sign_answer(key, token, body))


def _mac(key: bytes, purpose: bytes, *parts: str) -> str:
    """No two lists of parts have one message: each is preceded by its length."""
    written = b"".join(b"%d:%b" % (len(part.encode()), part.encode()) for part in parts)
    return hmac.new(key, purpose + b"\0" + written, sha256).hexdigest()
