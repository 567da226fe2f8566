"""Bytes at random, near misses and pipelines at the HTTP port, in memory: documented answers or none.

Behind it are engines that say anything of where to go next, and engines whose paths some manage.

Of every connection: what comes back is HTTP with statuses that the OpenAPI document names, nothing fails
unforeseen, the connection is closed or still answers, and once it is gone nothing of it is left. No answer
leads its client anywhere but to its own engine, and no path by which an engine is managed gets there with a
plain key, however an engine may read it.
"""

import asyncio
import logging
import re
from functools import partial
from random import Random
from typing import Any
from urllib.parse import unquote

import httptools
from structlog.testing import capture_logs
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.api.server.client_addresses import PerAddressLimiter
from gateway.api.server.protocol import BoundedHttpProtocol, bounded
from gateway.api.server.request_parser import ConnectionLimits
from gateway.domain.engine_paths import EnginePaths
from gateway.domain.request import Request
from tests.fuzz.documented import documented_statuses
from tests.gateway.api.support import FakeResponse, Surface, json_response
from tests.support.attacks import ATTACKS, KEY

_GOOD_KEY = b"sk-tl-test"
_GOOD = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
_DOCUMENTED = {100, 204, 426} | documented_statuses()
_SEEDS = [attack.sent.replace(KEY, _GOOD_KEY) for attack in ATTACKS if len(attack.sent) < 5000]
_PIECES = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"%",
        b"%00",
        b"%2e",
        b"..",
        b"/",
        b"//",
        b";",
        b"#",
        b"?",
    ),
    *(b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"connection: close\r\n", b"host: y\r\n"),
    *(
        b"expect: 100-continue\r\n",
        b"upgrade: websocket\r\nconnection: upgrade\r\n",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
    ),
    *(
        b"HTTP/1.0",
        b"HEAD ",
        b"OPTIONS ",
        b"/tunnel",
        b"/engines/m/x",
        b"/engines/m@a/x",
        b"/api/chat",
        b"/api/tags",
        b"/docs",
        b"/v1/models",
        b"\xff\xfe",
        b"a" * 70_000,
    ),
    *(
        b"x-request-id: \x01\r\n",
        b"content-type: multipart/form-data; boundary=x\r\n\r\n--x\r\n",
        b"x-model: m\r\n",
        b"x-trunkline-session: s\r\n",
    ),
]
_REDIRECTS = {301, 302, 303, 307, 308}
_ENGINES = _REDIRECTS | {200, 201, 204, 304, 404}
"""Statuses of the engines behind it."""
_TURNS = 400
_PATHS = EnginePaths()
_MANAGING = (
    *("/api/delete", "/api/pull", "/sleep", "/flush_cache", "/slots/0", "/v1/load_lora_adapter"),
    *("/v2/repository/models/n/unload", "/interrupt", "/shutdown"),
)
_SEEDS += [
    b"POST /engines/m%b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: 0\r\n\r\n"
    % (path.encode(), _GOOD_KEY)
    for path in (*_MANAGING, "/docs", "/a/b")
] * 3
_ADDRESSES = (
    *(
        "/docs/",
        "b",
        "?x",
        "#x",
        "../../../v1/models",
        "//evil.example/",
        "/\\evil.example",
        "https://evil.example",
    ),
    *(
        "/%2e%2e/x",
        "/..;/x",
        "/a//b",
        "javascript:x",
        "///evil.example",
        "/\tevil",
        " /a",
        "/./..//evil.example",
    ),
)
_LEADS = re.compile(
    rb"\r\n(?:(?:location|content-location|operation-location|sourcemap): "
    rb"|refresh: \d+; url=|link: <)([^\r>]*)"
)


class _Wire(asyncio.Transport):
    """A socket in memory; ``out`` is what the client gets."""

    def __init__(self, protocol: BoundedHttpProtocol) -> None:
        super().__init__()
        self.out = bytearray()
        self.closing = False
        self.ended = False
        """Closed for us; the client may still send what nobody reads."""
        self._protocol: asyncio.BaseProtocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.7", 5), "sockname": ("192.0.2.1", 8700)}.get(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended, "it writes after its end"
        if not self.closing:
            self.out += data

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol


class _Hangup(asyncio.Protocol):
    """What becomes of an upgraded connection here; tunnels have fuzzers of their own."""

    def __init__(self, **_options: Any) -> None:
        pass

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Answers:
    """The statuses of answers, read as a client reads them."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.parser = httptools.HttpResponseParser(self)

    def on_headers_complete(self) -> None:
        self.statuses.append(self.parser.get_status_code())


def _input(random: Random) -> bytes:
    data = bytearray(b"".join(random.choice(_SEEDS) for _ in range(random.choice((1, 1, 1, 2, 4)))))
    for _ in range(random.choice((0, 1, 1, 2, 5))):
        place = random.randrange(len(data) + 1)
        match random.randrange(6):
            case 0:
                data[place:place] = random.choice(_PIECES)
            case 1:
                data[place : place + 1] = bytes([random.randrange(256)])
            case 2:
                del data[place : place + random.choice((1, 2, 20))]
            case 3:
                data[place:place] = data[max(0, place - 30) : place]
            case 4:
                lines = data.split(b"\r\n")
                random.shuffle(lines)
                data = bytearray(b"\r\n".join(lines))
            case _:
                data += random.randbytes(random.randrange(40))
    return bytes(data)


def _split(random: Random, data: bytes) -> list[bytes]:
    """As a network may deliver it."""
    if random.random() < 0.5 or len(data) < 2:
        return [data]
    cuts = sorted(random.sample(range(1, len(data)), min(len(data) - 1, random.choice((1, 2, 8)))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def _turns(surface: Surface) -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
        if not surface.lifecycle.in_flight:
            break


async def _one(
    random: Random, surface: Surface, config: Config, places: PerAddressLimiter, state: ServerState
) -> None:
    protocol: BoundedHttpProtocol = config.http_protocol_class(  # type: ignore[call-arg, assignment]
        config=config, server_state=state, app_state={}
    )
    wire = _Wire(protocol)
    protocol.connection_made(wire)
    sent = _input(random)
    for piece in _split(random, sent):
        wire.get_protocol().data_received(piece)  # type: ignore[attr-defined]
        await asyncio.sleep(0)
    await _turns(surface)
    _check(sent, bytes(wire.out))
    idle = protocol._in_head and not protocol._head_bytes and not surface.lifecycle.in_flight
    if idle and not wire.closing and not wire.ended:
        wire.out.clear()
        protocol.data_received(_GOOD)
        await _turns(surface)
        assert wire.closing or wire.out.startswith(b"HTTP/1.1 "), "it neither answers nor is closed"
    wire.close()
    await _turns(surface)
    await asyncio.sleep(0)
    assert not surface.lifecycle.in_flight, "a request outlived its connection"
    assert not surface.budget.used_bytes, "a body outlived its connection"
    assert not places._taken, "a place outlived its connection"
    assert not state.connections, "a connection is still counted"


def _check(sent: bytes, out: bytes) -> None:
    found = [int(status) for status in re.findall(rb"(?:\A|\n)HTTP/1\.1 (\d{3}) ", out)]
    assert (_DOCUMENTED | _ENGINES).issuperset(found), found
    assert b"engines" in sent or _REDIRECTS.isdisjoint(found), found
    assert 500 not in found, "it failed unforeseen"
    for address in _LEADS.findall(out):
        assert re.match(rb"/engines/[^/]+/(?!/)[^\\\t]*\Z", address), address
        assert b"/../" not in address + b"/", address
    if not re.search(rb"[A-Z]+ /\S*" + _GOOD_KEY, sent):  # a path is told to whoever wrote it
        assert _GOOD_KEY not in out, "the key was told back"
    if b"HEAD" in sent:
        return
    answers = _Answers()
    answers.parser.feed_data(out)
    assert (_DOCUMENTED | _ENGINES).issuperset(answers.statuses), answers.statuses


def _leading(random: Random) -> FakeResponse:
    """An engine's answer that says where to go."""
    fields = []
    for name in ("location", "content-location", "operation-location", "sourcemap", "refresh", "link"):
        if random.random() < 0.4:
            address = random.choice(_ADDRESSES)
            shape = {"refresh": "0; url=%s", "link": "<%s>; rel=next"}.get(name, "%s")
            fields.append((name, shape % address))
    return FakeResponse(random.choice(tuple(_ENGINES)), tuple(fields))


def _readings(path: str) -> set[str]:
    """As engines may read it: decoded once or twice, without regard to case, slashes and parameters."""
    found = set()
    for place in (path, unquote(path), unquote(unquote(path))):
        place = place.partition("?")[0].lower()
        bare = "/".join(part.partition(";")[0].strip() for part in place.split("/"))
        for each in (place, bare, re.sub("/+", "/", bare)):
            found |= {each, each.rstrip("/")}
    return found


async def _round(random: Random, inputs: int) -> int:
    surface, places = Surface(), PerAddressLimiter(1)

    async def serve(request: Request) -> FakeResponse:
        _PATHS.check(request, ())
        if request.route == "any":
            for read in _readings(request.path):
                assert read not in _MANAGING, f"{request.path} came to the engine"
        return random.choice((json_response, partial(_leading, random)))()

    surface.dispatcher.serve = serve
    config = Config(
        surface.app,
        http=bounded(ConnectionLimits(), None, places),
        ws=_Hangup,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )
    config.load()
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    state = ServerState()
    for _ in range(inputs):
        with capture_logs() as lines:
            await _one(random, surface, config, places, state)
        assert not failures, failures
        assert not [line for line in lines if line["event"] == "request_failed"]
        surface.finished.clear()
        surface.dispatcher.requests.clear()
        surface.dispatcher.arrived.clear()
    return inputs


def fuzz(random: Random, inputs: int) -> int:
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    return asyncio.run(_round(random, inputs))
