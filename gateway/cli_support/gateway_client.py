"""Asks a gateway over HTTP, for commands: its admin API, or what its clients ask."""

import contextlib
import errno
import itertools
import math
import re
import secrets
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from http.client import HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import IO, Any

import orjson

from gateway.domain.urls import BadUrl, check_url, is_own
from shared.process.connection_errors import explain_http_error

ANSWER_BYTES = 64 * 1024 * 1024
"""Longest answer that is read: thousands of agents have a tenth of it."""

TIMEOUT_S = 30.0
PIECE_BYTES = 256 * 1024
"""Of a file, at once."""


class Unanswered(Enum):
    """How far a request came that has no answer, where it may have one another time."""

    NOT_HEARD = auto()
    """Nobody took the connection."""
    BROKEN_OFF = auto()
    """The connection ended. The request may have been carried out."""


class GatewayFailed(Exception):
    """The gateway cannot be asked, or does not do it. The message says why."""

    def __init__(self, message: str, status: int | None = None, unanswered: Unanswered | None = None) -> None:
        """``status`` is what the gateway answered, None when it did not."""
        super().__init__(message)
        self.status = status
        self.unanswered = unanswered


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the key is for the named gateway only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


class GatewayClient:
    """One gateway, and the key shown to it."""

    def __init__(self, url: str, key: str, ca_file: Path | None = None) -> None:
        """``ca_file`` holds the certificates to trust for its TLS, in place of the system's.

        Raises GatewayFailed for a URL over which a key would be sent in the clear, and for a file that holds
        no certificates.
        """
        try:
            parts = check_url(url)
        except BadUrl as error:
            raise GatewayFailed(str(error)) from None
        if not (key.isascii() and key.isprintable()):
            raise GatewayFailed("the key holds characters that no key has: was it copied right?")
        self._url = url.rstrip("/").removesuffix("/v1")
        self._key = key
        here = is_own(parts.hostname or "")
        self._proxy = None if here else _proxy_for(parts.scheme, parts.hostname or "")
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})] if here else []
        if ca_file is not None:
            handlers.append(urllib.request.HTTPSHandler(context=_trusting(ca_file)))
        self._opener = urllib.request.build_opener(_NoRedirect, *handlers)

    def get(self, path: str, *members: str) -> dict[str, Any]:
        """The JSON at ``/admin/PATH``, which has these ``members``. Raises GatewayFailed."""
        return self.ask("GET", path, *members)

    def ask(
        self,
        method: str,
        path: str,
        *members: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """What the gateway says, with these ``members``, when it is sent ``body``. Raises GatewayFailed."""
        with self.open(method, f"/admin/{path}", body=body, timeout_s=timeout_s) as response:
            found = orjson.loads(response.read(ANSWER_BYTES))
        if not isinstance(found, dict) or not found.keys() >= set(members):
            raise GatewayFailed(f"{self._url} does not answer as a gateway does")
        return found

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = TIMEOUT_S,
        more: Mapping[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        """The response to a request for ``path``, to be read as it comes. Raises GatewayFailed for a status
        that is no success, and for what cannot be read. ``more`` are header fields."""
        headers = dict(more or {})
        if body is not None:
            headers["content-type"] = "application/json"
        with self._send(
            method, path, None if body is None else _encoded(body), headers, timeout_s
        ) as response:
            yield response

    @contextlib.contextmanager
    def upload(
        self,
        path: str,
        fields: Mapping[str, str],
        file: IO[bytes],
        size_bytes: int,
        name: str,
        timeout_s: float = TIMEOUT_S,
        more: Mapping[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        """The response to a form with these fields and a file, which is read while it is sent.
        Otherwise as :meth:`open`."""
        boundary = secrets.token_hex(16)
        parts = [
            f'--{boundary}\r\ncontent-disposition: form-data; name="{each}"\r\n\r\n{value}\r\n'
            for each, value in fields.items()
        ]
        shown = re.sub(r'[\x00-\x1f"\\]', "_", name)
        parts.append(
            f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{shown}"\r\n\r\n'
        )
        head, tail = "".join(parts).encode(), f"\r\n--{boundary}--\r\n".encode()
        content = itertools.chain((head,), iter(lambda: file.read(PIECE_BYTES), b""), (tail,))
        headers = dict(more or {}) | {
            "content-type": f"multipart/form-data; boundary={boundary}",
            "content-length": str(len(head) + size_bytes + len(tail)),
        }
        with self._send("POST", path, content, headers, timeout_s) as response:
            yield response

    @contextlib.contextmanager
    def _send(
        self,
        method: str,
        path: str,
        data: bytes | Iterable[bytes] | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> Iterator[HTTPResponse]:
        own = {"authorization": f"Bearer {self._key}", "accept": "application/json, text/event-stream"}
        request = urllib.request.Request(  # noqa: S310 (checked above)
            f"{self._url}{path}", method=method, data=data, headers={**own, **headers}
        )
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                yield response
        except urllib.error.HTTPError as error:
            with error:
                raise GatewayFailed(_reason(error), error.code) from None
        except (OSError, ValueError, HTTPException) as error:
            said = f"cannot ask the gateway at {self._url}: {self._why(error)}"
            raise GatewayFailed(said, unanswered=_unanswered(error)) from error

    def _why(self, error: Exception) -> str:
        reason = getattr(error, "reason", error)
        cause = reason if isinstance(reason, OSError) else error
        return explain_http_error(self._url, cause, self._proxy)


def _unanswered(error: Exception) -> Unanswered | None:
    """None: it would be the same another time."""
    connecting = isinstance(error, urllib.error.URLError)
    cause = getattr(error, "reason", error)
    broken_off = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, IncompleteRead)
    if isinstance(cause, (*broken_off, ssl.SSLEOFError)):
        return Unanswered.BROKEN_OFF
    if isinstance(cause, TimeoutError):
        return Unanswered.NOT_HEARD if connecting else Unanswered.BROKEN_OFF
    away = isinstance(cause, (ConnectionRefusedError, socket.gaierror))
    if away or getattr(cause, "errno", None) in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return Unanswered.NOT_HEARD
    return None


def _encoded(body: Mapping[str, Any]) -> bytes:
    """As JSON. Raises GatewayFailed for numbers that it has not: orjson writes infinity as null, which takes
    limits away."""
    _check_numbers(body)
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        raise GatewayFailed(f"this cannot be sent: {error}", 400) from None


def _check_numbers(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise GatewayFailed(f"{value} is no number that can be sent", 400)
    if isinstance(value, Mapping):
        for each in value.values():
            _check_numbers(each)


def _proxy_for(scheme: str, host: str) -> str | None:
    """The proxy of the environment that requests to ``host`` go through."""
    return None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme)


def _trusting(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = "it holds none in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise GatewayFailed(f"cannot take certificates to trust from {ca_file}: {reason}") from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(orjson.loads(error.read(ANSWER_BYTES))["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError, HTTPException):
        return f"the gateway answers with status {error.code}"
