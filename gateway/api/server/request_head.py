"""What a request's head must be so that no two readers of it can see different requests, and the id that it
gives the request. Pure.

The parser (llhttp, strict) refuses malformed framing already: Content-Length beside Transfer-Encoding or
twice, folded lines, bare line feeds, control characters, blanks before a colon. What it takes and others read
differently is refused here (RFC 9112 §3.2, §6.1, §11.2).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from os import register_at_fork, urandom
from typing import Any

from gateway.domain.errors import BadRequest, HeadersTooLarge, RequestError
from gateway.pipeline.client_head import HeadFacts

_SANE = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/=+@-]{0,127}\Z")


def request_id(fields: Mapping[bytes, bytes]) -> str:
    """The client's own ``x-request-id`` when it is 1 to 128 harmless characters, else a new one."""
    theirs = fields.get(b"x-request-id")
    if theirs is not None and _SANE.match(theirs):
        return theirs.decode("ascii")
    return new_request_id()


def new_request_id() -> str:
    """One that nobody can guess. The system is asked for chance for many of them together."""
    try:
        return _unused_ids.pop()
    except IndexError:
        chance = urandom(_IDS * _ID_CHARS // 2).hex()
        made = [f"req_{chance[at : at + _ID_CHARS]}" for at in range(0, len(chance), _ID_CHARS)]
        _unused_ids.extend(made[1:])
        return made[0]


_ID_CHARS = 24
_IDS = 64
_unused_ids: list[str] = []
register_at_fork(after_in_child=_unused_ids.clear)  # else two processes would give the same ones


FIELDS = 256
"""Header fields of a request; a tunnel carries half as many on to an engine."""

_ESCAPED_CONTROL = re.compile(rb"%(?:[01]|7f)", re.IGNORECASE)

ONCE = frozenset(
    (
        *(b"host", b"authorization", b"x-api-key", b"api-key", b"x-model", b"x-request-id", b"expect"),
        *(b"content-type", b"content-encoding", b"content-length", b"transfer-encoding"),
    )
)
"""Fields that decide something: with two of one, we and a proxy in front could each heed another."""


def check_head(
    url: bytes, headers: Sequence[tuple[bytes, bytes]], fields: Mapping[bytes, bytes], version: str
) -> RequestError | None:
    """What is wrong with a request's head; None for one that can be read in one way only.

    ``headers`` have lower-case names; ``fields`` are the same by name. ``version`` is ``"1.1"`` and the like.
    """
    if len(fields) != len(headers):
        if len(headers) > FIELDS:
            return _too_many()
        counts = Counter(name for name, _ in headers)
        twice = sorted(name.decode("latin-1") for name in ONCE & fields.keys() if counts[name] > 1)
        if twice:
            return BadRequest(f"The header {twice[0]} came more than once.", code="repeated_header")
    elif len(fields) > FIELDS:
        return _too_many()
    if url[:1] != b"/" or b"#" in url:
        message = "The request's target must be a path that begins with '/', without a fragment."
        return BadRequest(message, code="invalid_path")
    if b"%" in url and _ESCAPED_CONTROL.search(url.partition(b"?")[0]):
        return BadRequest("The path holds control characters.", code="invalid_path")
    if b"host" not in fields and version == "1.1":
        return BadRequest("An HTTP/1.1 request needs the header Host.", code="missing_host")
    if b"transfer-encoding" in fields:
        coding = fields[b"transfer-encoding"].strip(b" \t").lower()
        if coding != b"chunked" or version != "1.1":
            message = "The only Transfer-Encoding taken is chunked, in HTTP/1.1."
            return BadRequest(message, code="unsupported_transfer_encoding")
    return None


class CheckedHead:
    """A head that was checked, with what the server makes of it. Requests share it that have the same line
    and header fields, but for the length of their bodies."""

    __slots__ = (
        "_headers",
        "_length_at",
        "_line",
        "declines_upgrade",
        "expects_continue",
        "facts",
        "fields",
        "keep_alive",
        "scope",
        "upgrading",
    )

    def __init__(
        self,
        line: tuple[bytes, bytes, str],
        headers: Sequence[tuple[bytes, bytes]],
        fields: Mapping[bytes, bytes],
        scope: dict[str, Any],
        facts: HeadFacts,
        *,
        expects_continue: bool,
        keep_alive: bool,
        upgrading: bool,
        declines_upgrade: bool = False,
    ) -> None:
        """``line`` is the method, the target and the version. ``scope`` is that of ASGI but for the header
        fields."""
        self._line = line
        self._headers = list(headers)
        self._length_at = headers.index((_LENGTH, fields[_LENGTH])) if _LENGTH in fields else -1
        self.fields = fields
        """By name, the first of each: those of the request that was compared last. Never changed."""
        self.scope = scope
        self.facts = facts
        self.expects_continue = expects_continue
        self.keep_alive = keep_alive
        self.upgrading = upgrading
        self.declines_upgrade = declines_upgrade
        """Another protocol is asked for, which is not spoken before the request was read, or not at all."""

    def is_same(
        self, method: bytes, url: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]
    ) -> bool:
        """Whether this is the head of this request too; its length is noted then. False ends its use."""
        mine, at = self._headers, self._length_at
        if len(headers) != len(mine) or (method, url, version) != self._line:
            return False
        if at >= 0 and headers[at] != mine[at]:
            name, length = mine[at] = headers[at]
            if name != _LENGTH or headers != mine:
                return False
            self.fields = {**self.fields, _LENGTH: length}
            return True
        return headers == mine


_LENGTH = b"content-length"


def _too_many() -> HeadersTooLarge:
    return HeadersTooLarge(f"A request may have {FIELDS} header fields.")
