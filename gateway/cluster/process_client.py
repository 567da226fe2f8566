"""Asks another process of this gateway over HTTP, within bounds of time and size."""

import asyncio
import ssl
from functools import cache
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import httptools

from gateway.domain.http_get import AnswerUnusable, HttpAnswer, http_get

ANSWER_BYTES = 16 * 1024 * 1024
"""Longest answer that is read: thousands of agents have less than half of it."""


class NoAnswer(Exception):
    """The process cannot be asked, or does not answer as it should. The message says why."""


class BadAddress(ValueError):
    """No URL at which a process can be asked. The message says why."""


def check_address(url: str) -> SplitResult:
    """The parts of a URL at which a process can be asked. Raises BadAddress."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username is not None or parts.query or parts.fragment or not url.isascii():
        raise BadAddress(f"{url[:200]!r} is no address of a process: write https://HOST:PORT")
    return parts


async def get(url: str, target: str, authorization: str, within_s: float, ca_file: Path | None) -> HttpAnswer:
    """What the process at ``url`` answers to a request for ``target``, path and query; redirects are not
    followed. ``ca_file`` has certificates to trust, in place of the system's. Raises NoAnswer."""
    try:
        parts = check_address(url)
        async with asyncio.timeout(within_s):
            return await _converse(parts, target, authorization, ca_file)
    except TimeoutError:
        raise NoAnswer(f"no answer within {within_s:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise NoAnswer(f"its certificate is not trusted here: {error.verify_message}") from error
    except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise NoAnswer("it does not answer in HTTP") from error
    except (OSError, ValueError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from error


async def _converse(parts: SplitResult, target: str, authorization: str, ca_file: Path | None) -> HttpAnswer:
    """Raises OSError, NoAnswer, HttpParserError."""
    tls = await asyncio.to_thread(_trusting, ca_file) if parts.scheme == "https" else None
    path, fields = f"{parts.path.rstrip('/')}{target}", {"authorization": authorization}
    try:
        answer = await http_get(parts, path, tls, ANSWER_BYTES, fields)
    except AnswerUnusable as error:
        raise NoAnswer(f"its answer cannot be used: {error}") from None
    if not answer.complete:
        raise NoAnswer("its answer ended too early")
    return answer


@cache
def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    """Reading the system's certificates takes tens of milliseconds. Raises OSError."""
    return ssl.create_default_context(cafile=ca_file)
