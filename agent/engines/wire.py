"""What of a request may reach an engine, and of its response the gateway. Pure."""

import re
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from functools import lru_cache
from urllib.parse import SplitResult, quote, urlsplit

import orjson
from websockets.typing import Subprotocol

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
PATH_CHARS = "/%:@!$&'()*+,;=~"
"""Of a path these go to an engine as they are, beside letters, digits and ``_.-``."""
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


REMEMBERED_PATHS = 64
REMEMBERED_PATH_CHARS = 256
"""How many paths that are passed to engines are remembered, and how long a remembered path may be."""

REMEMBERED_HEAD_BYTES = 1024
"""How long a remembered head of a request may be. So many are remembered as paths."""


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


class _Passing(Enum):
    """What becomes of a request's header field on its way to an engine, by its name."""

    PASSED = auto()
    DROPPED = auto()
    LENGTH = auto()
    """How long the body is: it is read, and written anew."""
    CONNECTION = auto()
    """Names further fields that are dropped."""
    UNFIT = auto()
    """The name is none."""


_PASSED, _OF_LENGTH = _Passing.PASSED, _Passing.LENGTH
"""Members of enumerations for the path of every request: a global is found faster."""


@lru_cache(maxsize=256)
def _passing(name: str) -> _Passing:
    """Remembered, because few names are ever used, and the same all the time."""
    name = name.lower()
    if name == "content-length":
        return _Passing.LENGTH
    if name == "connection":
        return _Passing.CONNECTION
    if name in HOP_BY_HOP or name in _OURS:
        return _Passing.DROPPED
    return _Passing.PASSED if FIELD_NAME.fullmatch(name) else _Passing.UNFIT


def request_fields(headers: Headers) -> tuple[str, int | None]:
    """The header lines of a request that its engine gets, in order, and the length of its body in bytes, or
    None when it is not said. Characters stand for bytes, in Latin-1. Raises :class:`RequestUnfit`."""
    lines = texts = ""
    length: str | None = None
    for name, text in headers:
        passing = _passing(name)
        if passing is _PASSED:
            lines += f"{name}: {text}\r\n"
            texts += text
        elif passing is _OF_LENGTH:
            if length is not None and text.strip() != length:
                raise _unfit_length()
            length = text.strip()
        elif passing is _Passing.CONNECTION:
            return request_fields(_without_named_by_connection(headers))
        elif passing is _Passing.UNFIT:
            raise _unfit_header()
    if FORBIDDEN_IN_VALUE.search(texts) or not (texts.isascii() or max(texts) <= "\xff"):
        raise _unfit_header()
    if length is None:
        return lines, None
    if not _LENGTH.fullmatch(length):
        raise _unfit_length()
    return lines, int(length)


def _without_named_by_connection(headers: Headers) -> Headers:
    named = connection_options(text for name, text in headers if name.lower() == "connection")
    dropped = named | {"connection"}
    return tuple(
        (name, text)
        for name, text in headers
        if name.lower() == "content-length" or name.lower() not in dropped
    )


def _unfit_length() -> RequestUnfit:
    return RequestUnfit("the request's content-length is not a length")


def _unfit_header() -> RequestUnfit:
    return RequestUnfit("a header of the request is not one that is passed to engines")


class RequestFormat:
    """The heads of requests to the engine at ``base``; what is the same in many of them is encoded once."""

    def __init__(self, base: str, api_key: str | None) -> None:
        parts = self._base = urlsplit(base)
        self._api_key = api_key
        self._prefix = quote(parts.path, safe=PATH_CHARS).encode()
        self._same = b" HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n" % _host(parts)
        if api_key is not None:
            self._same += b"authorization: Bearer %b\r\n" % api_key.encode()
        self._starts: dict[tuple[str, str], bytes] = {}
        """Method and path, and how a request with them begins."""
        self._heads: dict[tuple[str, str, Headers], bytes] = {}
        """Method, path and all fields but the length, which is the last, and how such a request begins: the
        requests of a client differ in nothing else."""

    def head(self, method: str, path: str, headers: Headers) -> tuple[bytes, int | None]:
        """All that precedes a request's body but its framing and the empty line, and the body's length in
        bytes, if it is said. Raises :class:`RequestUnfit`."""
        asked = None
        if headers and headers[-1][0] == "content-length":
            asked, length = (method, path, headers[:-1]), headers[-1][1]
            known = self._heads.get(asked)
            if known is not None and _LENGTH.fullmatch(length):
                return known, int(length)
        lines, length_bytes = request_fields(headers)
        start = self._starts.get((method, path))
        if start is None:
            start = self._start(method, path)
        begins = start + lines.encode("latin-1")
        if asked is not None and len(begins) <= REMEMBERED_HEAD_BYTES:
            self._remember(asked, begins)
        return begins, length_bytes

    def _remember(self, asked: tuple[str, str, Headers], begins: bytes) -> None:
        if any(name.lower() == "content-length" for name, _ in asked[2]):
            return  # whether it contradicts the last one is to be looked at each time
        if len(self._heads) >= REMEMBERED_PATHS:
            self._heads.clear()
        self._heads[asked] = begins

    def websocket(
        self, method: str, path: str, headers: Headers
    ) -> tuple[str, list[tuple[str, str]], list[Subprotocol]]:
        """Where a WebSocket is opened for a request, with which header fields, and the subprotocols that its
        client offers. Raises :class:`RequestUnfit`."""
        if check_method(method) != "GET":
            raise RequestUnfit("only a GET request can ask for a WebSocket")
        plain = tuple(field for field in headers if not field[0].lower().startswith("sec-websocket-"))
        lines, _ = request_fields(plain)
        ended = lines.split("\r\n")[:-1]  # a value may hold other characters that end lines, such as U+0085
        fields = [(name, text) for name, _, text in (line.partition(": ") for line in ended)]
        if self._api_key is not None:
            fields.append(("authorization", f"Bearer {self._api_key}"))
        offered = (
            name.strip()
            for field, text in headers
            if field.lower() == "sec-websocket-protocol"
            for name in text.split(",")
        )
        subprotocols = [Subprotocol(name) for name in offered if FIELD_NAME.fullmatch(name.lower())]
        base = self._base
        scheme = "wss" if base.scheme == "https" else "ws"
        place = quote(base.path, safe=PATH_CHARS) + check_path(path)
        return f"{scheme}://{base.netloc}{place}", fields, subprotocols

    def _start(self, method: str, path: str) -> bytes:
        start = b"%b %b%b%b" % (
            check_method(method).encode(),
            self._prefix,
            check_path(path).encode(),
            self._same,
        )
        if len(path) <= REMEMBERED_PATH_CHARS:
            if len(self._starts) >= REMEMBERED_PATHS:
                self._starts.clear()
            self._starts[method, path] = start
        return start

    def response_headers(self, raw: Sequence[tuple[bytes, bytes]]) -> Headers:
        """As :func:`response_headers`, with addresses on the engine itself as paths of it: many engines write
        them out with the host they were asked by (Starlette's redirects), which is nobody else's name. Those
        on its host that are not under ``base`` become whole, for they lead elsewhere."""
        if len(raw) <= limits.HEADERS:
            try:
                return tuple(filter(None, map(_ordinary_field, raw)))
            except _UnusualField:
                pass
        headers = tuple(
            (name, self._as_path(text) if name in _ADDRESSES else text)
            for name, text in response_headers(raw)
        )
        if len(orjson.dumps(headers)) > QUOTED_BYTES:
            raise BackendFailed(_TOO_MANY)
        return headers

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


@lru_cache(maxsize=256)
def _response_field(name: bytes) -> tuple[str, bool, bool]:
    """A response's field of this name: the name in lower case, whether the gateway gets such fields, and
    whether it is one to look at closely: it is no name, or says which others the gateway does not get."""
    text = name.decode("latin-1").lower()
    return text, text not in HOP_BY_HOP, text == "connection" or not FIELD_NAME.fullmatch(text)


class _UnusualField(Exception):
    """It takes more than the field itself to know what becomes of it."""


ORDINARY_FIELD_BYTES = limits.HEADER_BYTES // limits.HEADERS
"""How long an ordinary field may be, quoted: as many as are allowed are not too much together."""

QUOTED_BYTES = limits.CONTROL_PAYLOAD_BYTES - 4 * limits.KIB
"""How long all fields may be as HEAD has them, where a quotation mark takes two bytes; the rest is for what
else it says."""

_TOO_MANY = "the engine's answer has too many headers, or too long ones"


@lru_cache(maxsize=256)
def _ordinary_field(raw: tuple[bytes, bytes]) -> tuple[str, str] | None:
    """What :func:`response_headers` makes of a field that says nothing of other ones; None: nothing. Raises
    :class:`_UnusualField`. Remembered, because an engine's answers differ in one or two fields."""
    field, passed, odd = _response_field(raw[0])
    text = raw[1].decode("latin-1")
    if field == "connection":
        odd = not connection_options((text,)) <= HOP_BY_HOP  # those are dropped whoever names them
    unusual = odd or field in _ADDRESSES or len(orjson.dumps((field, text))) > ORDINARY_FIELD_BYTES
    if unusual or not text.isascii() or FORBIDDEN_IN_VALUE.search(text):
        raise _UnusualField
    return (field, text.strip()) if passed else None


def response_headers(raw: Sequence[tuple[bytes, bytes]]) -> Headers:
    """An engine's headers as the gateway gets them. Raises :class:`BackendFailed` for what it
    would refuse.
    """
    texts, plain = "", True
    kept: list[tuple[str, str]] = []
    for name, value in raw:
        field, passed, odd = _response_field(name)
        if odd:
            plain = False
        text = value.decode("latin-1")
        texts += field
        texts += text
        if passed:
            kept.append((field, text.strip()))
    if len(raw) > limits.HEADERS or len(texts) > limits.HEADER_BYTES:
        raise BackendFailed(_TOO_MANY)
    if plain and texts.isascii() and not FORBIDDEN_IN_VALUE.search(texts):
        return tuple(kept)
    named = [value.decode("latin-1") for name, value in raw if name.lower() == b"connection"]
    return _checked_headers(kept, connection_options(named))


def _checked_headers(headers: Iterable[tuple[str, str]], dropped: frozenset[str]) -> Headers:
    """Those whose names are not ``dropped``. Raises :class:`BackendFailed` for what the gateway would
    refuse."""
    kept = tuple((name, text) for name, text in headers if name not in dropped)
    if any(not FIELD_NAME.fullmatch(name) or FORBIDDEN_IN_VALUE.search(text) for name, text in kept):
        raise BackendFailed("the engine's answer has a malformed header")
    if sum(len(name) + len(text.encode()) for name, text in kept) > limits.HEADER_BYTES:
        raise BackendFailed(_TOO_MANY)
    return kept
