"""Which web pages may use this gateway from a browser (CORS: the Fetch standard, §3.2). None, unless set.

Keys travel in a header of their own, never in cookies, so credentials in the sense of CORS are never allowed.
"""

import re
from collections.abc import Collection, Mapping

from gateway.api.errors import HeaderList

PREFLIGHT_S = 600
"""So long a browser may remember an answer to a preflight."""

_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_FIELDS = re.compile(rb"[a-z0-9-]+([ \t]*,[ \t]*[a-z0-9-]+)*\Z", re.IGNORECASE)
_EXPOSED = (
    b"x-request-id, request-id, retry-after, retry-after-ms, x-trunkline-agent, x-trunkline-queue-ms, "
    b"x-trunkline-attempts, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
    b"x-ratelimit-reset-tokens"
)


class Cors:
    """Exact origins; there is no wildcard."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origin.encode("ascii") for origin in origins)

    def headers(self, fields: Mapping[bytes, bytes]) -> HeaderList:
        """What every answer to a request with these fields says besides."""
        origin = fields.get(b"origin")
        if origin not in self._origins:
            return [(b"vary", b"origin")]
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        ]

    def preflight(self, method: str, fields: Mapping[bytes, bytes]) -> HeaderList | None:
        """The answer (204) to a browser that asks whether a page may; None if this is no such question, or
        the page may not."""
        if method != "OPTIONS" or b"access-control-request-method" not in fields:
            return None
        if fields.get(b"origin") not in self._origins:
            return None
        wanted_fields = fields.get(b"access-control-request-headers", b"").strip()
        answer = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", str(PREFLIGHT_S).encode("ascii")),
        ]
        if wanted_fields and _FIELDS.match(wanted_fields):
            answer.append((b"access-control-allow-headers", wanted_fields))
        return answer
