"""What of a request may reach an engine, and of its response the gateway. Pure."""

import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import SplitResult, quote, urlsplit

from agent.engines.backend import BackendFailed, RequestUnfit
from shared.protocol import limits
from shared.protocol.header_fields import FIELD_NAME, FORBIDDEN_IN_VALUE, HOP_BY_HOP, connection_options
from shared.protocol.messages import Headers

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_ADDRESSES = frozenset(("location", "content-location", "operation-location"))
BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
"""Methods whose requests have no body unless they say so."""

_OURS = frozenset(("host", "content-length", "expect", "accept-encoding", "authorization", "x-api-key"))
"""Set by the agent or not at all: framing is the connection's, credentials are the client's for the gateway
and ours for the engine, and a compressed answer could not be read for usage."""

_PATH = re.compile(r"/[\x21-\x7e]*")
_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9_-]+)+")
"""Nothing in it that could mean another place, however it is read: nearly all there are."""
_PATH_CHARS = "/%:@!$&'()*+,;=~"
_CONTROL_BYTE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_ESCAPED = re.compile(rb"%[0-9A-Fa-f]{2}")
"""As the standard library decodes it, but what is no escape costs next to nothing."""
_CLIMBS = re.compile(rb"(?:^|[/\\])\.\.(?:[/\\]|\Z)")
_LENGTH = re.compile(r"[0-9]{1,15}")
_UNQUOTE_ROUNDS = 3
"""A path may be decoded by a proxy, a framework and a handler, each once."""


PATH_BYTES = 8192
"""Longest path and query that a gateway sends (PROTOCOL §4.1); to see where a path leads takes time for every
byte."""


def check_method(method: str) -> str:
    """``method`` in capitals. Raises :class:`RequestUnfit` for one that is not of METHODS."""
    if method.upper() not in METHODS:
        raise RequestUnfit(f"method {method[:16]!r} is not passed to engines")
    return method.upper()


def check_path(path: str) -> str:
    """``path`` as it is, if it can only name something on the engine it is appended to.

    Raises :class:`RequestUnfit` for whatever does not begin with one slash, holds blanks, control
    characters, a backslash or a fragment, climbs with ``..``, however it is quoted, or is longer than
    :data:`PATH_BYTES`.
    """
    if len(path) > PATH_BYTES:
        raise RequestUnfit(f"the path is longer than {PATH_BYTES} bytes")
    if _PLAIN_PATH.fullmatch(path):
        return path
    if not _PATH.fullmatch(path) or path.startswith("//") or "\\" in path or "#" in path:
        raise RequestUnfit("the path is not one that is passed to engines")
    place = path.partition("?")[0].encode()
    for _ in range(_UNQUOTE_ROUNDS):
        place = _ESCAPED.sub(_unescaped, place)
        if _CLIMBS.search(place) or _CONTROL_BYTE.search(place):
            raise RequestUnfit("the path leaves the place that is passed to engines")
    return path


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes((int(found[0][1:], 16),))


def request_headers(headers: Headers) -> list[tuple[str, str]]:
    """What of a request's headers the engine gets, in order. Raises :class:`RequestUnfit`."""
    dropped = _named_by_connection(headers)
    kept: list[tuple[str, str]] = []
    for name, text in headers:
        passed, allowed = _field_name(name)
        if not passed or (dropped and name.lower() in dropped):
            continue
        if not allowed or FORBIDDEN_IN_VALUE.search(text):
            raise RequestUnfit("a header of the request is not one that is passed to engines")
        kept.append((name, text))
    return kept


@lru_cache(maxsize=256)
def _field_name(name: str) -> tuple[bool, bool]:
    """Whether a request's header fields of this name go to engines, and whether it is a name at all.
    Remembered, because few names are ever used, and the same all the time."""
    name = name.lower()
    return name not in HOP_BY_HOP and name not in _OURS, FIELD_NAME.fullmatch(name) is not None


class RequestFormat:
    """The heads of requests to the engine at ``base``; what is the same in all of them is encoded once."""

    def __init__(self, base: str, api_key: str | None) -> None:
        parts = self._base = urlsplit(base)
        self._prefix = quote(parts.path, safe=_PATH_CHARS).encode()
        self._same = b" HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n" % _host(parts)
        if api_key is not None:
            self._same += b"authorization: Bearer %b\r\n" % api_key.encode()

    def head(self, method: str, path: str, headers: Headers, framing: bytes) -> bytes:
        """All that precedes a request's body; ``framing``: header lines that say how long that is.

        ``method`` and ``path`` must have been checked. Raises :class:`RequestUnfit` for the headers.
        """
        lines = "".join([f"{name}: {text}\r\n" for name, text in request_headers(headers)])
        place = (method.encode(), self._prefix, path.encode())
        return b"%b %b%b%b%b%b\r\n" % (*place, self._same, framing, lines.encode())

    def response_headers(self, raw: Iterable[tuple[bytes, bytes]]) -> Headers:
        """As :func:`response_headers`, with addresses on the engine itself as paths of it: many engines write
        them out with the host they were asked by (Starlette's redirects), which is nobody else's name. Those
        on its host that are not under ``base`` become whole, for they lead elsewhere."""
        headers = response_headers(raw)
        if not any(name in _ADDRESSES for name, _ in headers):
            return headers
        return tuple((name, self._as_path(text) if name in _ADDRESSES else text) for name, text in headers)

    def _as_path(self, address: str) -> str:
        base = self._base
        try:
            parts = urlsplit(address)
            own = (parts.scheme, _authority(parts)) == (base.scheme, _authority(base))
        except ValueError:
            return address
        rooted = not parts.scheme and not parts.netloc and address.startswith("/")
        if not (own or rooted) or (rooted and address.startswith("//")):
            return address
        prefix, path = base.path.rstrip("/"), parts.path or "/"
        if path == prefix or path.startswith(f"{prefix}/"):
            return parts._replace(scheme="", netloc="", path=path[len(prefix) :] or "/").geturl()
        return parts._replace(scheme=base.scheme, netloc=base.netloc).geturl()


def _authority(parts: SplitResult) -> tuple[str | None, int | None]:
    """Raises ValueError for a port that is none."""
    if parts.username is not None or parts.password is not None:
        return None, -1
    return parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _host(parts: SplitResult) -> bytes:
    """The authority without the scheme's own port (RFC 9110 §7.2)."""
    usual = ":443" if parts.scheme == "https" else ":80"
    host = parts.netloc.removesuffix(usual)
    return host.encode("ascii" if host.isascii() else "idna")


def declared_length(headers: Headers) -> int | None:
    """The request body's length in bytes, or None when it is not said. Raises :class:`RequestUnfit`."""
    values = {text.strip() for name, text in headers if name.lower() == "content-length"}
    if not values:
        return None
    if len(values) > 1 or not _LENGTH.fullmatch(value := values.pop()):
        raise RequestUnfit("the request's content-length is not a length")
    return int(value)


def response_headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """An engine's headers as the gateway gets them. Raises :class:`BackendFailed` for what it
    would refuse.
    """
    raw = list(raw)
    if len(raw) > limits.HEADERS or sum(len(name) + len(text) for name, text in raw) > limits.HEADER_BYTES:
        raise BackendFailed("the engine's answer has too many headers, or too long ones")
    decoded = [(name.decode("latin-1").lower(), text.decode("latin-1").strip()) for name, text in raw]
    dropped = HOP_BY_HOP | _named_by_connection(decoded)
    kept = tuple((name, text) for name, text in decoded if name not in dropped)
    if any(not FIELD_NAME.fullmatch(name) or FORBIDDEN_IN_VALUE.search(text) for name, text in kept):
        raise BackendFailed("the engine's answer has a malformed header")
    if sum(len(name) + len(text.encode()) for name, text in kept) > limits.HEADER_BYTES:
        raise BackendFailed("the engine's answer has too many headers, or too long ones")
    return kept


def _named_by_connection(headers: Iterable[tuple[str, str]]) -> frozenset[str]:
    return connection_options(text for name, text in headers if name.lower() == "connection")
