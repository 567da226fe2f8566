"""Makes one attempt to deliver an event: a POST to an address that was checked."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohappyeyeballs
import httptools

from gateway.domain.http_get import AnswerUnusable, HttpAnswer, exchange
from gateway.domain.webhook_addresses import WebhookRefused, WebhookTarget, read_webhook_url
from gateway.domain.webhooks import AttemptResult
from gateway.jobs.webhooks.guard import WebhookGuard
from shared import __version__
from shared.process.connected_sockets import transport_over
from shared.process.excerpt import printable

ATTEMPT_S = 15.0
"""From the lookup to the end of the answer."""

ANSWER_BYTES = 16 * 1024
"""More of an answer's body is not read."""

_RACE_S = 0.25
_ERROR_CHARS = 200


class WebhookSender:
    """Sends to what the guard allows and to nothing else: it follows no redirect and asks no proxy."""

    def __init__(self, guard: WebhookGuard, ca_file: Path | None = None) -> None:
        """``ca_file`` holds the certificates to trust in place of the system's."""
        self._guard = guard
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> AttemptResult:
        """POST ``body``. Raises nothing but what cancels it."""
        try:
            async with asyncio.timeout(ATTEMPT_S):
                return await self._send(url, headers, body)
        except TimeoutError:
            return AttemptResult(error=f"it did not answer within {ATTEMPT_S:g} s")
        except WebhookRefused as error:
            return AttemptResult(error=str(error))
        except AnswerUnusable as error:
            return AttemptResult(error=f"its answer cannot be used: {error}")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return AttemptResult(error="its answer is no HTTP")
        except (OSError, UnicodeError) as error:
            return AttemptResult(error=printable(str(error) or type(error).__name__)[:_ERROR_CHARS])

    async def _send(self, url: str, headers: Mapping[str, str], body: bytes) -> AttemptResult:
        target = read_webhook_url(url, self._guard.rules)
        addresses = await self._guard.allowed(target, url)
        tls = await self._context() if target.scheme == "https" else None
        connected = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=_RACE_S)
        try:
            self._guard.check_address(str(connected.getpeername()[0]), url)
        except BaseException:
            connected.close()
            raise
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        transport, protocol = await transport_over(
            connected, lambda: asyncio.StreamReaderProtocol(reader), tls, target.host
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        answer = _BoundedAnswer(ANSWER_BYTES)
        await exchange(reader, writer, _request(target, headers, body), answer)
        if not answer.status:
            return AttemptResult(error="it closed the connection without an answer")
        return AttemptResult(answer.status, answer.headers.get("retry-after"))

    async def _context(self) -> ssl.SSLContext:
        """Made at the first use, in a thread: reading certificates takes a while."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context, cafile=self._ca_file)
        return self._tls


@dataclass(slots=True)
class _BoundedAnswer(HttpAnswer):
    """Reads no more of a body than it may: what the answer is, its head has said."""

    _read_bytes: int = 0

    def on_body(self, data: bytes) -> None:
        self._read_bytes += len(data)
        if self._read_bytes > self.most_bytes:
            self.complete = True


def _request(target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> bytes:
    fields = {
        "host": target.authority,
        "user-agent": f"trunkline/{__version__}",
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **headers,
        "connection": "close",
    }
    head = [f"POST {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(head).encode("ascii") + body
