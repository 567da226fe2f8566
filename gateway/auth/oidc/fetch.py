"""Fetches an issuer's small documents over HTTPS, within bounds of time and size."""

import asyncio
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urljoin

import httptools

from gateway.domain.urls import check_url

DOCUMENT_BYTES = 256 * 1024
"""Longest document: a hundred keys with their certificates have half of it."""

FETCH_S = 10.0
"""For one document, with all redirects to it."""

REDIRECTS = 3

_HEAD_BYTES = 32 * 1024
_READ_BYTES = 16 * 1024
_REDIRECTED = (301, 302, 303, 307, 308)
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})")


class FetchFailed(Exception):
    """The document cannot be had. The message says why, for the gateway's operator."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A document, and for how long its sender says that it keeps."""

    body: bytes
    max_age_s: float | None


async def fetch(url: str, ca_file: Path | None = None) -> Fetched:
    """The document at ``url``. Follows redirects that stay at the same origin. Raises FetchFailed."""
    try:
        async with asyncio.timeout(FETCH_S):
            for _ in range(REDIRECTS + 1):
                answer = await _get(check_url(url), ca_file)
                if answer.status not in _REDIRECTED:
                    break
                url = _followed(url, answer.headers.get("location", ""))
            else:
                raise FetchFailed(f"more than {REDIRECTS} redirects")
    except TimeoutError:
        raise FetchFailed(f"no answer within {FETCH_S:g} s") from None
    except (OSError, ValueError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise FetchFailed(str(error) or type(error).__name__) from error
    if answer.status != 200:
        raise FetchFailed(f"it answers with status {answer.status}")
    return Fetched(bytes(answer.body), _max_age_s(answer.headers.get("cache-control", "")))


def _followed(url: str, location: str) -> str:
    """Where a redirect leads. Raises FetchFailed when that is another origin."""
    target = urljoin(url, location)
    before, after = check_url(url), check_url(target)
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        raise FetchFailed("it redirects to another origin")
    return target


def _max_age_s(cache_control: str) -> float | None:
    text = cache_control.lower()
    if "no-store" in text or "no-cache" in text:
        return 0.0
    found = _MAX_AGE.search(text)
    return float(found[1]) if found else None


@dataclass(slots=True)
class _Answer:
    """Takes what httptools finds. Raises FetchFailed when it is too much."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False
    _head_bytes: int = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _HEAD_BYTES:
            raise FetchFailed(f"its head is longer than {_HEAD_BYTES} bytes")
        self.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_body(self, data: bytes) -> None:
        if len(self.body) + len(data) > DOCUMENT_BYTES:
            raise FetchFailed(f"it is longer than {DOCUMENT_BYTES} bytes")
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


async def _get(parts: SplitResult, ca_file: Path | None) -> _Answer:
    """One answer over a connection of its own. Raises OSError, FetchFailed, HttpParserError."""
    tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
    port = parts.port or (443 if tls is not None else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls)
    answer, read_bytes = _Answer(), 0
    parser = httptools.HttpResponseParser(answer)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        writer.write(
            f"GET {target} HTTP/1.1\r\nhost: {parts.netloc}\r\naccept: application/json\r\n"
            "accept-encoding: identity\r\nconnection: close\r\n\r\n".encode("ascii")
        )
        while not answer.complete and (data := await reader.read(_READ_BYTES)):
            read_bytes += len(data)
            if read_bytes > 2 * (DOCUMENT_BYTES + _HEAD_BYTES):
                raise FetchFailed("it is too long")
            parser.feed_data(data)
    except httptools.HttpParserCallbackError as error:
        if isinstance(error.__context__, FetchFailed):
            raise error.__context__ from None
        raise
    finally:
        writer.transport.abort()  # a goodbye would have to be waited for
    answer.status = parser.get_status_code()
    if not answer.complete and "content-length" in answer.headers:
        raise FetchFailed("it ended too early")
    return answer
