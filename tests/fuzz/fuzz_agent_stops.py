"""Answers of engines made to take long: nothing that the agent does with one on its event loop takes long.

Of every call that the loop would make the processor's time is taken, not the clock's, so that a busy machine
accuses nobody. What comes of the call is looked at as well, where it is simple: bytes pass unchanged.
"""

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Any

from agent.engines.backend import BackendError
from agent.engines.error_responses import PATH_BODY_BYTES, PATH_STATUSES, lacks_path, refusal_of
from agent.engines.http.client.connection import EngineConnection
from agent.engines.http.engine_client import PROBE_BYTES, SmallResponse
from agent.engines.http.kind import routes_from
from agent.engines.http.load import Loads, slices
from agent.engines.http.models import left_out, read_models
from agent.engines.wire import check_path, response_headers
from agent.requests.event_usage import EventUsage
from agent.requests.usage import reader_for
from shared.protocol.messages import UsageMode
from shared.protocol.progress import Progress
from tests.support.collection import no_collection

STOP_S = 0.025
"""The longest a call may take. What is meant is about 5 ms; the rest is for slow machines."""

KIB = 1024
READ_BYTES = 256 * KIB
"""The most that asyncio and uvloop read from a socket at once."""

_TOKEN = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi"}}],"usage":null}\n\n'
_ATOMS = (
    *(b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r", b"\n\r", b":", b"data:", b"data: ", b"event: x\n", b" ", b","),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"\\",
        b"x",
        b"1",
        b"\xff",
        b"\xc3\xa9",
        b"[],",
        b"{},",
        b'"":{},',
        b"1,",
    ),
    *(
        b'"usage"',
        b'"usage":{',
        b'{"usage":{}}',
        b'"choices"',
        b'"choices":[]',
        b'"choices":[',
        b'"choices":[1',
    ),
    *(_TOKEN, b'data:{"choices":[],"usage":{}}\n\n', b'data:{"choices":[],"usage":{}}\r\r'),
    *(b'{"eval_count":1}\n', b'{"index":[],"eval_count":1}\n', b'{"details":{"generated_tokens":1}}', b"9"),
)
_MEMBERS = (
    b'"id":"a"',
    b'"id":" "',
    b'"id":0',
    b'"owned_by":"x"',
    b'"meta":{"n_ctx":1}',
    b'"routes":["chat"]',
)
_METRICS = (
    *(
        b"vllm:num_requests_running 1\n",
        b"tgi_queue_size   \n",
        b"vllm:num_requests_running",
        b"\n",
        b"v",
        b" ",
    ),
    *(
        b"{",
        b"}",
        b'model_name="',
        b",",
        b'model_name="m",',
        b"9",
        b"1e308\n",
        b"#",
        b"vllm:cache_config_info{",
    ),
    *(b'block_size="16",', b'vllm:num_requests_waiting{model_name="%d"} 1\n'),
)
_HTTP = (
    *(b"a:\r\n", b"a: b\r\n", b"\r\n", b"\r\n x", b"x", b" ", b"1\r\nx\r\n", b"1;a=b\r\nx\r\n", b"0\r\n"),
    *(
        b"HTTP/1.1 100 C\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"connection: a\r\n",
        b"\0",
    ),
)
_HEADS = (
    *(
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\na: ",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n",
    ),
    *(b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
)
_WORDS = (
    b"<pre>",
    b"</pre>",
    b"<title>",
    b"<h1>",
    b" ",
    b"<",
    b"not found",
    b'{"error":',
    b"too many",
    b"\n",
    b"x",
)
_PATHS = ("/", "%25", "%2525", "%c3", "%2e", ".", "a", "a/", "\\", "%5c", "?", "%")


def _fill(random: Random, atoms: tuple[bytes, ...], size_bytes: int) -> bytes:
    """Few kinds of atoms over and over."""
    unit = b"".join(
        random.choice(atoms) * random.choice((1, 1, 7)) for _ in range(random.choice((1, 1, 2, 3)))
    )
    begin = b"".join(random.choices(atoms, k=random.randrange(3)))
    end = b"".join(random.choices(atoms, k=random.randrange(3)))
    return (begin + unit * (size_bytes // len(unit)) + end)[: size_bytes + len(begin) + len(end)]


def _timed(call: Callable[[], Any]) -> Any:
    """What ``call`` returns; an engine's error is an answer like others."""
    began_s = time.thread_time()
    try:
        result = call()
    except BackendError as error:
        result = error
    took_s = time.thread_time() - began_s
    assert took_s < STOP_S, f"{took_s * 1000:.0f} ms"
    return result


def _body(random: Random) -> None:
    """A body on its way to the gateway, and what is read of its usage when it is over."""
    kind = random.choice(("text/event-stream", "application/json", "application/x-ndjson"))
    mode = random.choice(tuple(UsageMode))
    reader = reader_for(mode, (("content-type", kind),))
    pieces = [_fill(random, _ATOMS, random.choice((10, KIB, READ_BYTES, READ_BYTES + 64 * KIB)))]
    if random.random() < 0.5:
        pieces.insert(0, _fill(random, _ATOMS, random.choice((10, KIB, 64 * KIB))))
    passed = [_timed(lambda piece=piece: reader.feed(piece)) for piece in pieces]  # type: ignore[misc]
    if mode is not UsageMode.STRIP or not isinstance(reader, EventUsage):
        assert passed == pieces, "bytes were changed or held back"
    _timed(reader.finish)
    _timed(reader.usage)


class _Transport:
    """As much of a transport as an exchange uses."""

    def set_protocol(self, protocol: object) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _Receiver:
    """Takes all of an answer."""

    tells_progress = False

    def on_answer(self) -> None: ...

    def on_body(self, piece: bytes) -> bool:
        return True

    def on_progress(self, progress: Progress) -> None: ...
    def on_over(self, error: Exception | None) -> None: ...


def _wire(random: Random) -> None:
    """What an engine's connection brings."""
    connection = EngineConnection(lambda connection: None)
    connection.connection_made(_Transport())  # type: ignore[arg-type]
    for _ in range(2):
        connection.begin(_Receiver())
        connection.data_received(random.choice(_HEADS))
        data = _fill(random, _HTTP, random.choice((KIB, READ_BYTES)))
        _timed(lambda data=data: connection.data_received(data))  # type: ignore[misc]
        _timed(lambda: response_headers(connection.raw_headers))
        connection.end()


def _listed(random: Random) -> None:
    """A list of models, or a description of paths."""
    entry = b"{" + b",".join(random.choices(_MEMBERS, k=random.randrange(3))) + b"}"
    if random.random() < 0.3:
        entry = random.choice((b"0", b"[]", b"{}", b'""', b'{"id":"' + b"\xc3\xa9" * 50_000 + b'"}'))
    count = random.choice((1, 500, 5_000, 16_000, 200_000, PROBE_BYTES)) // len(entry) + 1
    if random.random() < 0.3:
        paths = b",".join(b'"/p%d":{"post":{}}' % number for number in range(min(count, 50_000)))
        body = b'{"paths":{' + paths + b"}}"
    else:
        body = b'{"data":[' + b",".join([entry] * count) + b"]}"
    document = _timed(SmallResponse(200, body[:PROBE_BYTES]).json)
    models = _timed(lambda: read_models(document))
    assert models is None or len(models) <= len(body)
    _timed(lambda: left_out(document))
    _timed(lambda: routes_from(document))


def _metrics(random: Random) -> None:
    """A page of metrics."""
    body = _fill(random, _METRICS, random.choice((KIB, 16 * KIB, 128 * KIB)))
    if random.random() < 0.2:
        body = b"".join(b'vllm:num_requests_running{model_name="%d"} 1\n' % number for number in range(5_000))
    loads, read_bytes = Loads(), 0
    for piece in slices(body):
        read_bytes += len(piece)
        _timed(lambda piece=piece: loads.feed(piece))  # type: ignore[misc]
    assert read_bytes == len(body)
    _timed(lambda: [loads.of(f"m{number}") for number in range(200)])


def _refusal(random: Random) -> None:
    """An error's body, and a request's path."""
    body = _fill(random, _WORDS, PATH_BODY_BYTES)[:PATH_BODY_BYTES]
    headers = (("content-type", random.choice(("text/html", "application/json", "text/plain"))),)
    status = random.choice(sorted(PATH_STATUSES))
    _timed(lambda: lacks_path(status, headers, body, "/v1/rerank"))
    long = _fill(random, _WORDS, READ_BYTES)
    _timed(lambda: refusal_of(503, long, 1))
    unit = "".join(random.choices(_PATHS, k=random.choice((1, 2, 3))))
    path = "/" + unit * (random.choice((100, 8_000, 48 * KIB)) // len(unit))
    _timed(lambda: check_path(path))


async def _round(random: Random, inputs: int) -> int:
    for _ in range(inputs):
        kind = random.choice((_body, _body, _listed, _metrics, _refusal, None))
        if kind is None:
            _wire(random)
        else:
            kind(random)
    return inputs


def fuzz(random: Random, inputs: int) -> int:
    """``inputs`` are fewer than asked for: each is long."""
    with no_collection():
        return 2 * asyncio.run(_round(random, max(1, inputs // 2)))
