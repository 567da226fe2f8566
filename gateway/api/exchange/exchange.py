"""One client's request and its answer: joins the ASGI side to the pipeline, holds the facts for the log."""

import asyncio
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any
from urllib.parse import quote

from gateway.api.errors import HeaderList, dialect_of
from gateway.api.exchange.buffers import BufferBudget, buffer_owner
from gateway.api.exchange.client_watch import ClientWatch
from gateway.api.exchange.inbound import BodyLimits, Inbound, Receive
from gateway.api.exchange.multipart import FormScan
from gateway.api.exchange.progress_writer import PROGRESS, ask_progress
from gateway.api.exchange.reply import Reply, Send
from gateway.api.server.client_addresses import TrustedProxies
from gateway.api.server.cors import Cors
from gateway.api.server.request_head import new_request_id, request_id
from gateway.api.server.response_writers import take_cycle
from gateway.api.server.websocket import ClientWebSocket
from gateway.auth.keys import Credential
from gateway.domain.errors import BadRequest, Unauthenticated
from gateway.domain.request import Principal, Request, RequestBody
from gateway.domain.surface import SurfaceEndpoint, target
from gateway.observability.request_trace import RequestTrace
from gateway.pipeline.bodies.facts import SHORT_BYTES, is_short
from gateway.pipeline.bodies.reader import BodyReader
from gateway.pipeline.client_body import BodyKind, ClientBody, body_kind
from gateway.pipeline.client_head import ClientHead, HeadFacts
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.pipeline.relay import Response
from gateway.pipeline.websocket_head import Subprotocols, read_subprotocols
from shared.protocol.routes import Dialect

Scope = Mapping[str, Any]
_JSON = BodyKind.JSON
EXCHANGE = "trunkline.exchange"
"""Its name in the scope of the request."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How the HTTP surface treats its clients."""

    body: BodyLimits = field(default_factory=BodyLimits)
    comment_interval_s: float = 15.0
    """An event stream that waits gets a comment this often; quick errors still get a status of their own."""
    facts: bool = True
    """Say in headers which agent answered, after how long in the queue, at which attempt."""
    metrics_public: bool = False
    """Let ``/metrics`` be read without a key."""
    proxies: TrustedProxies | None = None
    """Who may say for whom it speaks; None for nobody."""
    refuse_plain: bool = False
    """Refuse requests of which a trusted proxy says that its client spoke plain HTTP."""
    requests_per_ip: int = 4096
    """At once, of an address that proxies speak for."""
    cors: Cors | None = None
    """Origins whose pages may read answers; None for none."""
    progress_delivered: Callable[[str, float], None] = lambda model, seconds: None
    """Called whenever a client was told how far its request is, and how long after that came."""


class HttpExchange:
    """Made for every request before anything else; ended by :meth:`close`."""

    __slots__ = (
        "_cycle",
        "_facts",
        "_handed_over",
        "_reader",
        "_scope",
        "_settings",
        "address",
        "arrived_s",
        "began_s",
        "ended_s",
        "fields",
        "head",
        "id",
        "inbound",
        "inspect",
        "method",
        "path",
        "peer",
        "principal",
        "raw_path",
        "reply",
        "request",
        "response",
        "route",
        "scheme",
        "trace",
    )
    head: ClientHead
    """Only after :meth:`set_endpoint`."""
    ended_s: float
    """When it was over, on the clock of ``began_s``. Only for those who observe it then."""

    def __init__(
        self,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
        settings: HttpSettings,
        budget: BufferBudget,
        closing: bool = False,
        reader: BodyReader | None = None,
    ) -> None:
        """``reader`` reads long JSON bodies; without one they are read here. The scope has it from now on."""
        headers = scope["headers"]
        cycle = self._cycle = take_cycle(scope)
        if cycle is None:
            fields: Mapping[bytes, bytes] = dict(reversed(headers))  # the first of each name counts
            facts, loop = None, asyncio.get_running_loop()
        else:
            fields, facts, loop = cycle.fields, cycle.facts, cycle.loop
        self._scope = scope
        self._settings = settings
        self.fields = fields
        self.id = request_id(fields) if b"x-request-id" in fields else new_request_id()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        """Decoded."""
        if facts is None:
            raw_path: bytes = scope.get("raw_path") or quote(self.path).encode("ascii")
            peer = scope.get("client")
            facts = HeadFacts(raw_path.decode("latin-1"), peer[0] if peer is not None else "")
        self._facts = facts
        self.raw_path = facts.raw_path
        """As the client wrote it: printable, unlike the decoded one."""
        self.arrived_s = loop.time()
        """On the loop's clock, which queue and dispatch reckon with; uvloop's counts milliseconds."""
        self.began_s = monotonic()
        """The same moment, fine enough for the log."""
        self._reader = reader
        self.inbound = Inbound(receive, fields, settings.body, budget, cycle)
        dialect = facts.dialect
        if dialect is None:
            dialect = facts.dialect = dialect_of(self.path, fields)
        self.reply = Reply(send, self.id, dialect, closing, cycle)
        if settings.cors is not None:
            self.reply.more = settings.cors.headers(fields)
        self.peer = self.address = facts.peer
        """The address of whoever is connected, and of whom it speaks for when it is a trusted proxy."""
        self.scheme: str | None = None
        """What a trusted proxy's client spoke, as far as it says so."""
        if settings.proxies is not None:
            self.address, self.scheme = settings.proxies.origin(self.peer, headers)
        self.route = "other"
        self.principal: Principal | None = None
        self.request: Request | None = None
        self.response: Response | None = None
        self.trace: RequestTrace | None = None
        """What is recorded of it; None: its trace is not."""
        self._handed_over = False
        self.inspect: Callable[[ClientBody], None] | None = None
        """Called with a JSON body as soon as it is read; what it raises ends the request."""
        scope[EXCHANGE] = self

    @property
    def query(self) -> bytes:
        """As the client wrote it, without the question mark."""
        found: bytes = self._scope["query_string"]
        return found

    def set_endpoint(self, endpoint: SurfaceEndpoint) -> bool:
        """Take the request for one to ``endpoint``; False if nothing is there.

        Raises BadRequest and PathTooLong.
        """
        aimed_at, query = endpoint.fixed, self._scope["query_string"]
        if aimed_at is None or query:
            aimed_at = target(endpoint, self.path, self.raw_path, query)
        if aimed_at is None:
            return False
        self.route = endpoint.route
        headers, upgrade = self._scope["headers"], None
        if endpoint.upgrades and b"upgrade" in self.fields:
            upgrade = self._asked_upgrade(headers)
        self.head = ClientHead(
            self.id,
            self.method,
            endpoint,
            aimed_at,
            headers,
            self.fields,
            self.arrived_s,
            upgrade,
            self._facts,
        )
        return True

    def _asked_upgrade(self, headers: Sequence[tuple[bytes, bytes]]) -> Subprotocols | None:
        """What is said of the WebSocket that is asked for; None: none is, or this server has none to give, so
        that the request is one as any other (RFC 9110 §7.8). Raises BadRequest."""
        cycle, protocols = self._cycle, self.fields[b"upgrade"].lower().split(b",")
        asked = self.method == "GET" and b"websocket" in [name.strip() for name in protocols]
        if not asked or cycle is None or cycle.switch is None or self._scope["http_version"] != "1.1":
            return None
        self.reply.socket = ClientWebSocket(cycle, headers)
        self.reply.subprotocols = read_subprotocols(headers)
        return self.reply.subprotocols

    @property
    def upgrading(self) -> Reply | None:
        """The reply, where the client asked for a WebSocket."""
        return None if self.reply.socket is None else self.reply

    def credential(self) -> str:
        """The key presented as a bearer token or as ``x-api-key``. Raises :class:`Unauthenticated`."""
        facts = self._facts
        if facts.credential is None:
            facts.credential = Credential(self._presented())
        return facts.credential

    def _presented(self) -> str:
        scheme, _, token = self.fields.get(b"authorization", b"").decode("latin-1").partition(" ")
        token = token.strip()
        if token and scheme.lower() == "bearer":
            return token
        key = self.fields.get(b"x-api-key", b"").decode("latin-1").strip()
        if key:
            return key
        if (named := read_subprotocols(self._scope["headers"]).key) is not None:
            return named
        raise Unauthenticated(
            "No API key was sent. Send one as 'Authorization: Bearer <key>' (or 'x-api-key: <key>'); "
            "'trunkline key create --name NAME' on the gateway's host makes one."
        )

    async def identify(self, keys: KeyAuthenticator) -> Principal:
        """Find out whose request it is. Raises :class:`Unauthenticated`."""
        principal = await keys.identify(self.credential())
        self.set_principal(principal)
        return principal

    def set_principal(self, principal: Principal) -> None:
        """Note whose request it is, and whose share of memory its body takes."""
        self.principal = principal
        self.inbound.owner = buffer_owner(principal.tenant, principal.key_id)

    def set_limit_headers(self, headers: Callable[[], HeaderList]) -> None:
        """Have the answer say what ``headers`` gives when its head is sent."""
        self.reply.latest = headers

    async def body(self) -> ClientBody:
        """As much of the body as classification needs, and no more, so that memory is bounded.

        JSON whole; multipart until the model is known, but at least the first MiB; anything else the first
        MiB. Raises what :meth:`Inbound.read` raises, UnsupportedEncoding, and BadRequest for broken
        multipart.
        """
        if self.reply.socket is not None:
            return self._messages(self.reply.socket)
        facts = self._facts
        kind = facts.kind
        if kind is None:
            kind = facts.kind = body_kind(self.head.endpoint, self.method, self.fields)
        if kind is _JSON:
            data = self.inbound.take_small()
            if data is None or (self._reader is not None and len(data) > SHORT_BYTES):
                return await self._json(data)
            found = ClientBody(kind, RequestBody(data or (), None, len(data)))
            if self.inspect is not None:
                self.inspect(found)
            return found
        scan = FormScan(self.fields[b"content-type"]) if kind is BodyKind.FORM else None
        most_bytes = self._settings.body.prefix_bytes
        enough = _Enough(most_bytes, scan, b"x-model" in self.fields)
        declared = self.inbound.declared_bytes
        held_bytes = None if declared is None else min(declared, most_bytes)
        content = self._content(await self.inbound.read_pieces(enough, held_bytes))
        if scan is None:
            return ClientBody(kind, content)
        if self.inbound.complete:
            scan.finish()
        return ClientBody(kind, content, scan.members)

    def _messages(self, socket: ClientWebSocket) -> ClientBody:
        """What the client says on its WebSocket. Raises BadRequest for a request with a body before it."""
        if self.inbound.take_small() != b"":
            raise BadRequest("A request for a WebSocket has no body.", code="invalid_upgrade")
        return ClientBody(BodyKind.OPAQUE, RequestBody(b"", socket.pieces(), None))

    async def _json(self, data: bytes | None) -> ClientBody:
        """Whole. A long one is read beside the event loop. ``data`` is all of it, if it was there."""
        if data is not None:
            pieces = [data] if data else []
            content = RequestBody(pieces, None, len(data))
        else:
            pieces = await self.inbound.read_pieces(_never, self.inbound.declared_bytes)
            content = self._content(pieces)
        found = ClientBody(BodyKind.JSON, content)
        if self._reader is not None and content.held_bytes > SHORT_BYTES and not is_short(pieces):
            who = self.principal
            owner = None if who is None else buffer_owner(who.tenant, who.key_id)
            found.facts = await self._reader.read(pieces, owner)
        if self.inspect is not None:
            self.inspect(found)
        return found

    def _content(self, pieces: list[bytes]) -> RequestBody:
        size_bytes = self.inbound.received_bytes if self.inbound.complete else self.inbound.declared_bytes
        return RequestBody(pieces, self.inbound.rest(), size_bytes)

    def set_request(self, request: Request) -> None:
        """Note what the client asks for; the log has it even if the request fails."""
        self.request = request
        if self.trace is not None:
            request.dispatch_trace, request.trace = self.trace, self.trace.traceparent

    def waiting(self, request: Request) -> ClientWatch:
        """While inside, a client that leaves cancels the block, which then raises ClientGone. What it hears
        until then is ended by :meth:`~gateway.api.exchange.reply.Reply.end_waiting`."""
        events = request.streaming and not request.upgrade
        if events and self.head.endpoint.dialect is not Dialect.OLLAMA:
            self.reply.keep_alive(self._settings.comment_interval_s, partial(_load_note, request))
        if PROGRESS in self.fields and not request.upgrade:
            self.ask_progress(request)
        cycle = self._cycle
        return ClientWatch(self.inbound, self.reply, cycle, None if cycle is None else cycle.task)

    def ask_progress(self, request: Request) -> None:
        """Have the client told how far its request is, if it asks for that. Raises BadRequest."""
        if PROGRESS in self.fields and self.reply.progress is None:
            ask_progress(request, self.fields, self.reply, self._settings.progress_delivered)

    def while_here(self) -> ClientWatch:
        """A block that is cancelled, and raises ClientGone, when the client leaves."""
        return ClientWatch(self.inbound, self.reply, self._cycle)

    def set_response(self, request: Request, response: Response) -> None:
        """Note the answer and the request that it answers, which is another one after a fallback."""
        self.request, self.response = request, response

    def hand_over(self) -> None:
        """The request outlives this exchange, and what is known of it so far is all that this one says."""
        self._handed_over = True

    def close(self) -> None:
        """The exchange is over: give back what it held."""
        if self.reply.socket is not None:
            self.inbound.received_bytes = self.reply.socket.bytes_in
        reservation = self.inbound.reservation
        if reservation is not None:
            reservation.release()
        request = None if self._handed_over else self.request
        if request is not None and (request.body.held_bytes or request.body.rest is not None):
            request.body = RequestBody(b"")
        self._scope.pop(EXCHANGE, None)  # else all of it would stay until cycles are looked for


def _never(chunk: bytes) -> bool:
    """Reads a body whole."""
    return False


@dataclass(slots=True)
class _Enough:
    """Decides chunk by chunk whether enough of a body was read."""

    limit_bytes: int
    scan: FormScan | None
    model_known: bool
    seen_bytes: int = 0

    def __call__(self, chunk: bytes) -> bool:
        self.seen_bytes += len(chunk)
        scan = self.scan
        scanned = scan is None or scan.feed(chunk) or self.model_known or "model" in scan.members
        return scanned and self.seen_bytes >= self.limit_bytes


def _load_note(request: Request) -> str | None:
    """What it waits for, while that is for its model to be loaded."""
    return None if request.load_note is None else request.load_note()


def exchange_of(scope: Mapping[str, Any]) -> HttpExchange:
    """The exchange that :class:`gateway.api.exchange.middleware.RequestMiddleware` made for this request."""
    exchange: HttpExchange = scope[EXCHANGE]
    return exchange
