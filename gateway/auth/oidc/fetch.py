"""Fetches an issuer's small documents over HTTPS, within bounds of time and size."""

import asyncio
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urljoin

import httptools

from gateway.domain.http_get import AnswerUnusable, HttpAnswer, http_get
from gateway.domain.urls import check_url

DOCUMENT_BYTES = 256 * 1024
"""Longest document: a hundred keys with their certificates have half of it."""

FETCH_S = 10.0
"""For one document, with all redirects to it."""

REDIRECTS = 3

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


async def _get(parts: SplitResult, ca_file: Path | None) -> HttpAnswer:
    """Raises OSError, FetchFailed, HttpParserError."""
    tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        return await http_get(parts, target, tls, DOCUMENT_BYTES)
    except AnswerUnusable as error:
        raise FetchFailed(str(error)) from None
