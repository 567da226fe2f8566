"""Bodies and answers made to take long, in memory: none stops the event loop, whatever comes of it.

Bodies go to the HTTP surface; requests and begun answers whose agent is lost are those of
:mod:`tests.fuzz.lost_streams`.

Of every callback of the loop the processor's time is taken, not the clock's, so that a busy machine accuses
nobody. Long bodies are read by a process of their own, as in a gateway.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from random import Random

from gateway.domain.request import Principal, Request
from gateway.domain.scopes import NamePatterns, Scopes
from gateway.pipeline.aliases.rewrite import rename
from gateway.pipeline.bodies.facts import is_short, read_json
from gateway.pipeline.bodies.reader import BodyReader
from gateway.pipeline.cache.cache import key_of
from gateway.pipeline.cache.rules import deterministic
from tests.fuzz.documented import documented_statuses
from tests.fuzz.lost_streams import Lost, measured
from tests.gateway.api.calls import Call
from tests.gateway.api.support import BEARER, MIB, FakeKeys, FakeResponse, Surface, json_response
from tests.support.collection import no_collection
from tests.support.loop_stops import LoopStops

STOP_S = 0.01
"""The longest a callback may take that reads a body. What is meant is about 5 ms; the rest is for slow
machines."""

LOST_STOP_S = 0.02
"""The longest that one about an agent that is lost may take, or about what comes of an answer. What is meant
is the same: 64 streams that are lost at once, or 64 KiB of events that another engine goes on with, take 5 to
9 ms, and 10 or more where another thread shares the core. Told all at once they would take 75."""

COSTS = 8
"""A body made to take long takes as long as so many inputs of other fuzzers."""

LOST_COSTS = 80
"""The same of an agent that is lost."""

TRIES = 3
"""What takes too long is tried again: what the machine does besides does not come twice."""

LONG_PART = 0.02
CHUNK_BYTES = 64 * 1024

_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/engines/m/v1/x")
_FORM = "multipart/form-data; boundary=B"
_KEYS = (
    *(b"model", b"Model", b"m\\u006fdel", b"stream_options", b"stream\\u005foptions", b"", b"x"),
    *(b"messages", b"tools", b"prompt", b"input", b"metadata", b'say \\"model\\"', b"\\\\"),
)
_VALUES = (
    *(b'""', b"[]", b"{}", b"null", b"1", b"-1e-7", b'"m"', b'"\\u006d"', b'{"model":"m"}', b"[[[]]]"),
    *(
        b'{"include_usage":false}',
        b'"\\\\"',
        b'"\\"model\\":"',
        b'{"url":"http://x"}',
        b"0000000000000000000",
    ),
)
_FILLS = (
    *(b" ", b"\\\\", b'"', b"{", b"[", b"[[],", b"}", b'"model":', b'"":"",', b"\r\n--B\r\n", b"\r", b"\n"),
    *(b"x", b"\\u0061", b"\xff", b"\xc3\xa9", b"1,", b'{"url":"",', b"\r\nname: value", b"--B", b"\0"),
)


def _json(random: Random, size_bytes: int) -> bytes:
    """An object of about this size, made of few kinds of members over and over."""
    some = [
        b'"%b":%b' % (random.choice(_KEYS), random.choice(_VALUES)) for _ in range(random.choice((1, 2, 5)))
    ]
    unit = b",".join(some) + b","
    members = unit * (size_bytes // len(unit))
    parts = [b'"model":"m",', members, _large(random, random.choice((0, size_bytes)))]
    random.shuffle(parts)
    return b"{" + b"".join(parts) + b'"stream":%b}' % random.choice((b"true", b"false"))


def _large(random: Random, size_bytes: int) -> bytes:
    """A member whose value is large."""
    unit = random.choice((b"[],", b"{},", b"1,", b'"",', b'{"model":"m"},', b'"\\u0061",'))
    values = unit * (size_bytes // len(unit))
    return b'"%b":[%b0],' % (random.choice(_KEYS), values)


def _form(random: Random, size_bytes: int) -> bytes:
    head = b'--B\r\ncontent-disposition: form-data; name="%b"%b\r\n\r\n'
    part = head % (
        random.choice((b"model", b"x", b"file")),
        random.choice((b"", b'; filename="f"')),
    )
    unit = part + random.choice(_FILLS) * random.choice((1, 100)) + b"\r\n"
    return unit * (size_bytes // len(unit) + 1) + b"--B--\r\n"


def _body(random: Random, size_bytes: int) -> bytes:
    kind = random.randrange(4)
    if kind == 0:
        fill = random.choice(_FILLS)
        return random.choice((b"", b"{", b'{"model":"m","x":"')) + fill * (size_bytes // len(fill))
    body = _form(random, size_bytes) if kind == 1 else _json(random, size_bytes)
    if random.random() < 0.2:
        place = random.randrange(len(body))
        body = body[:place] + random.choice(_FILLS) + body[place + random.randrange(3) :]
    return body


def _use(request: Request) -> None:
    """What the stages behind do with a body."""
    body = request.body
    if request.route != "any" and is_short(body.pieces) and body.rest is None and body.prefix[:1] == b"{":
        members = read_json(body.prefix)
        deterministic(request.route, members, body.prefix)
        key_of(request, members)
    rename(request, "another")
    assert body.held_bytes == sum(map(len, body.pieces))


async def _one(random: Random, surface: Surface) -> Call:
    """A call that is over."""
    long = random.random() < LONG_PART
    body = _body(random, random.randrange(MIB, 3 * MIB) if long else random.choice((200, 20_000, 250_000)))
    kind = random.choice(
        ("application/json", "application/json", _FORM, "text/plain", "application/x-ndjson")
    )
    surface.keys.principal = random.choice(
        (Principal("k", "k", "t"), Principal("k", "k", "t", scopes=Scopes(NamePatterns(("m", "a*")))))
    )
    headers = [BEARER, (b"content-type", kind.encode())]
    if random.random() < 0.3:
        headers.append((b"x-model", b"m"))
    call = surface.ask("POST", random.choice(_PATHS), *headers)
    for start in range(0, len(body), CHUNK_BYTES):
        call.body(body[start : start + CHUNK_BYTES], more=start + CHUNK_BYTES < len(body))
    async with asyncio.timeout(60):
        await call.task
    return call


async def _round(random: Random, inputs: int) -> int:
    documented = documented_statuses()
    reader, stops = BodyReader(1), LoopStops()
    surface = Surface(keys=FakeKeys(), reader=reader)

    async def serve(request: Request) -> FakeResponse:
        _use(request)
        return json_response()

    surface.dispatcher.serve = serve
    with stops.measured():
        for _ in range(inputs):
            seed = random.randrange(1 << 32)
            for _ in range(TRIES):
                stops.longest_s = 0.0
                call = await _one(Random(seed), surface)
                assert call.status in documented - {500}, call.status
                if stops.longest_s < STOP_S:
                    break
            assert stops.longest_s < STOP_S, f"seed {seed}: {stops.longest_s * 1000:.0f} ms in {stops.whose}"
            surface.finished.clear()
            surface.dispatcher.requests.clear()
    assert not surface.budget.used_bytes, "a body outlived its request"
    reader.close()
    return inputs


def _lost(random: Random, inputs: int) -> None:
    """Agents are lost in the middle of answers, with up to 64 streams on each."""
    longest: list[tuple[float, str]] = []

    def timed(run: Callable[[], None], whose: str) -> None:
        began_s = time.thread_time()
        run()
        longest.append((time.thread_time() - began_s, whose))

    with measured(timed):
        for _ in range(inputs):
            seed = random.randrange(1 << 32)
            worst: list[tuple[float, str]] = []
            while len(worst) < TRIES and (not worst or worst[-1][0] >= LOST_STOP_S):
                longest.clear()
                Lost(Random(seed), timed).run()
                worst.append(max(longest))
            took_s, whose = min(worst)
            assert took_s < LOST_STOP_S, f"seed {seed}: {took_s * 1000:.0f} ms in {whose}"


def fuzz(random: Random, inputs: int) -> int:
    """``inputs`` are fewer than asked for: each is long."""
    logging.getLogger("python_multipart.multipart").setLevel(logging.CRITICAL)
    with no_collection():
        _lost(random, max(1, inputs // LOST_COSTS))
        return COSTS * asyncio.run(_round(random, max(1, inputs // COSTS)))
