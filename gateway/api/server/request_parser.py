"""Reads requests from a connection with uvicorn's parser (llhttp), and makes a cycle of each.

What is general in uvicorn's own protocol class costs every request: here a head is described once, when it is
complete, and its bytes are counted only where more came than a head may have.
"""

import asyncio
import sys
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.api.server.answer_cycle import AnswerCycle, DirectBatch, SwitchedReceiver
from gateway.api.server.request_head import CheckedHead, check_head
from gateway.domain.errors import BadRequest, HeadersTooLarge, RequestError
from gateway.pipeline.client_head import HeadFacts
from shared.speedups import HeaderCollector

READ_AHEAD = 8
"""Requests of one connection that wait for their turn before it is read no more. While it is read, the end of
its client is seen, and a request that is being answered for nobody is given up."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds on those who have not yet sent a whole head."""

    head_bytes: int = 64 * 1024
    """Request line and header fields together; trailers count too."""
    head_s: float = 15.0
    """From the connection, or from the first byte of a later head, to its last byte."""
    connections: int = 16_384


class _BodyBehindUpgrade:
    """Takes the body of a request that asks for another protocol, which it does not get. The connection is
    not used again: whatever follows the body is dropped, as the parser does where there is none."""

    def __init__(self, protocol: "RequestParser", framing: bytes) -> None:
        """``framing`` is the header fields that say how long the body is."""
        self._protocol = protocol
        self._ended = False
        self._parser = HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")

    def feed_data(self, data: bytes) -> None:
        """More of it came. Raises HttpParserError for what is no such body."""
        if self._ended:
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            if not self._ended:
                raise

    def on_body(self, body: bytes) -> None:
        if not self._ended:
            self._protocol.on_body(body)

    def on_message_complete(self) -> None:
        if not self._ended:
            self._ended = True
            self._protocol.on_message_complete()


class RequestParser(HttpToolsProtocol):
    """One client connection, as far as its requests are read. Whoever derives from it bounds and answers
    them."""

    __slots__ = (
        "_batch",
        "_begun",
        "_body_framing",
        "_collector",
        "_fields_bytes",
        "_head",
        "_head_bytes",
        "_in_head",
        "_most_head_bytes",
        "_refusal",
        "_span_bytes",
        "_switched",
        "_timer",
        "_upgrading",
        "lacks_certificate",
        "on_header",
    )
    # besides what uvicorn's has: with more than 30 in a dictionary all of them, and methods, are found slowly

    limits = ConnectionLimits()
    batch: DirectBatch | None = None
    """For the direct way to clients; None: there is none."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._collector = self.on_header = HeaderCollector(self._take_field, sys.maxsize, sys.maxsize)  # type: ignore[method-assign]
        """The parser's: no frame of Python for a field of an ordinary head."""
        super().__init__(config, server_state, app_state, _loop)
        self._most_head_bytes = self.limits.head_bytes
        self._batch = self.batch
        self.lacks_certificate = False
        """The client should have shown a certificate, and has not."""
        self._in_head = True
        self._begun = False
        """A head has: empty lines before one are none of it (RFC 9112 §2.2)."""
        self._head_bytes = 0
        """Of the head that has begun; 0 where none has."""
        self._span_bytes = 0
        """Of all that came since the head may have begun: it is no longer than that."""
        self._fields_bytes = 0
        """Of the header fields and trailers so far; 0: nobody has counted them yet."""
        self._upgrading = False
        self._body_framing = b""
        """Of the body behind an upgrade that is declined, of which the parser takes no notice."""
        self._head: CheckedHead | None = None
        """Of the latest request; most clients send the same one again."""
        self._switched: SwitchedReceiver | None = None
        """Takes what comes, once another protocol is spoken here."""
        self._refusal: RequestError | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Bounds the head's time, or that of what follows an answer."""

    def parse(self, data: bytes) -> None:
        """Take what came; calls what is below for what it holds."""
        size_bytes = len(data)
        self._span_bytes = self._span_bytes + size_bytes if self._head_bytes else size_bytes
        if self._span_bytes > self._most_head_bytes:
            self._collector.open = False
        if self._in_head:
            self._head_bytes += size_bytes
        try:
            self.parser.feed_data(data)
        except HttpParserError:
            self._refuse(self._refusal or BadRequest("This is not a valid HTTP/1.1 request."))
        except HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        if not self._begun and self._in_head:
            self._head_bytes = 0

    def switch_protocols(self, receiver: SwitchedReceiver) -> None:
        """What comes from now on is for ``receiver``."""
        self._switched = receiver
        self.flow.resume_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._switched is not None:
            self._switched.writing_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._switched is not None:
            self._switched.connection_lost()
        self._collector.close()

    def _upgrade(self, rest: bytes) -> None:
        if self._upgrading:
            self.handle_websocket_upgrade()
        elif self.cycle is not None:
            # A client that would like HTTP/2 or a WebSocket is nothing to warn of. But the parser takes what
            # follows for the other protocol and drops it, so this connection must not be used again.
            self.cycle.keep_alive = False
            framing, self._body_framing = self._body_framing, b""
            if framing:
                self.parser = _BodyBehindUpgrade(self, framing)  # type: ignore[assignment]
                if rest:
                    self.parse(rest)

    def _framing(self) -> bytes:
        """The header fields of this request that say how long its body is; none: it has none."""
        fields = (each for each in self.headers if each[0] in (b"content-length", b"transfer-encoding"))
        return b"".join(b"%b: %b\r\n" % each for each in fields)

    # --- The parser's callbacks ---

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = self._collector.fields = []
        self._upgrading = False
        self._in_head = self._begun = True
        self._collector.open = self._span_bytes <= self._most_head_bytes
        self._head_bytes = self._head_bytes or 1  # it may have begun behind the end of a body
        self._fields_bytes = 0

    def on_url(self, url: bytes) -> None:
        self.url += url
        if self._span_bytes > self._most_head_bytes:
            self._bound_head(len(self.url))

    def _take_field(self, name: bytes, value: bytes) -> None:
        """More came than a head may be long, which bounds it, or the head is over, and this is a trailer."""
        if not self._fields_bytes:
            self._fields_bytes = sum(len(each) + len(its) + 4 for each, its in self.headers)
        self._fields_bytes += len(name) + len(value) + 4
        self._bound_head(len(self.url) + self._fields_bytes)
        if self._in_head:  # trailers are no header fields (RFC 9110 §6.5.1)
            self.headers.append((name.lower(), value))
        elif name.lower() == b"connection" and self.cycle is not None:
            self.cycle.keep_alive = False  # the parser heeds it there as well, and may read nothing behind it
            if self.cycle.response_complete:
                self.close_in_time()

    def on_headers_complete(self) -> None:
        self._in_head = self._begun = False
        self._collector.open = False
        self._head_bytes = 0
        if self._timer is not None:
            self._stop_timer()
        parser, headers, before, head = self.parser, self.headers, self.cycle, self._head
        method, version = parser.get_method(), parser.get_http_version()
        if head is None or not head.is_same(method, self.url, version, headers):
            head = self._head = self._read_head(method, version)
        is_next = before is None or before.response_complete
        if self.lacks_certificate or not is_next:
            self._accept(self._check_further())
        scope: Any = head.scope.copy()
        scope["headers"] = headers
        self.scope = scope
        if head.upgrading:
            self._upgrading = True
            return
        if head.declines_upgrade:
            self._body_framing = self._framing()
        cycle = self.cycle = AnswerCycle(
            scope,
            head.fields,
            self.transport,
            self.flow,
            self.loop,
            self.server_state.default_headers,
            head.expects_continue,
            head.keep_alive,
            self,
            head.facts,
            self._batch,
        )
        if is_next:
            self._start_asgi_task(cycle, self.app)
        else:
            self.pipeline.appendleft((cycle, self.app))
            if len(self.pipeline) >= READ_AHEAD:
                self.flow.pause_reading()

    def _read_head(self, method: bytes, version: str) -> CheckedHead:
        """The request's head, of which the parser knows more than what is in it. Raises RequestError."""
        parser, headers = self.parser, self.headers
        fields = dict(headers)
        if len(fields) != len(headers):
            fields = dict(reversed(headers))  # the first of each counts
        self._accept(check_head(self.url, headers, fields, version))
        asks_upgrade = parser.should_upgrade()
        upgrading = asks_upgrade and self._should_upgrade()
        raw_path, _, query = self.url.partition(b"?")
        path = raw_path.decode("ascii")
        scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "method": method.decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
        }
        return CheckedHead(
            (method, self.url, version),
            headers,
            fields,
            scope,
            HeadFacts(path, self.client[0] if self.client is not None else ""),
            expects_continue=version == "1.1" and fields.get(b"expect", b"").lower() == b"100-continue",
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            upgrading=upgrading,
            declines_upgrade=asks_upgrade and not upgrading,
        )

    def _accept(self, refusal: RequestError | None) -> None:
        """Raises it, if there is one."""
        if refusal is not None:
            self._refusal = refusal
            raise refusal

    def on_body(self, body: bytes) -> None:
        cycle: Any = self.cycle  # an AnswerCycle
        if self._upgrading or cycle.response_complete:
            return
        cycle.feed(body)
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        if self._body_framing:
            return  # it comes yet
        self._in_head = True
        if self._timer is not None:
            self._stop_timer()
        cycle: Any = self.cycle  # an AnswerCycle
        if not (self._upgrading or cycle.response_complete):
            cycle.end_request()

    def _bound_head(self, size_bytes: int) -> None:
        if size_bytes > self._most_head_bytes:
            self._refusal = self._head_too_large()
            raise self._refusal

    def _head_too_large(self) -> HeadersTooLarge:
        most_bytes = self._most_head_bytes
        return HeadersTooLarge(f"The request's line and headers may be {most_bytes} bytes long together.")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- For whoever derives from it ---

    def _check_further(self) -> RequestError | None:
        """What is wrong with a request whose head is right, where it comes before the answer to the one
        before it or its connection ``lacks_certificate``."""
        raise NotImplementedError

    def _refuse(self, error: RequestError) -> None:
        raise NotImplementedError

    def close_in_time(self) -> None:
        """Close once what waits was taken, or it took too long."""
        raise NotImplementedError
