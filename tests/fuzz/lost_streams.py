"""Requests and begun answers made to take long, on streams whose agent is lost, for :mod:`fuzz_stops`.

All is in memory: sessions without sockets, time under the test's control. What one call from outside and one
callback of the loop take is measured.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.domain.request import RequestBody
from shared.protocol.errors import TunnelClosed
from shared.protocol.messages import DeploymentState, ResponseHead, UsageMode
from tests.gateway.fleet import manual_timers
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet

MIB = 1024 * 1024
MOST_STREAMS = 64
HEAD = ResponseHead(200, (("content-type", "text/event-stream"),))
CHUNK_BYTES = 64 * 1024
WAYS = {"chat": "final_message", "completions": "prompt", "responses": "prefill", "messages": "prefill"}

_VALUES = (
    *(
        b"1",
        b"1.5",
        b'""',
        b'"\\""',
        b'"\\\\"',
        b"[]",
        b"{}",
        b"[[]]",
        b'{"":{}}',
        b'{"type":"text","text":""}',
    ),
    *(b'{"role":"assistant","content":"a"}', b'{"type":"function"}', b'"a \\" b, c: [d]"', b'"\\u0061"'),
)
_NAMES = (
    *(b"messages", b"input", b"prompt", b"tools", b"stop", b"metadata", b"m\\u0065ssages", b"x", b"include"),
    *(b"response_format", b"logit_bias", b"guided_json", b"max_tokens"),
)
_LINES = (
    *(b":", b"", b"id", b"id:1", b"retry: 1", b"event: ping", b"data:", b"data: [DONE]", b"data:{}", b"data"),
    *(
        b'data:{"choices":[]}',
        b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}',
        b'data: {"id":"c","choices":[{"index":1,"text":"a","finish_reason":"x"}]}',
        b'data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"a"}',
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}',
        b"data: " + b"[[]," * 999 + b"1" + b"]" * 999,
    ),
)
_LINE_ENDS = (b"\n", b"\n\n", b"\r", b"\r\r", b"\r\n", b"\r\n\r\n", b"\n\r")


def body(random: Random) -> bytes:
    """A request for any of the routes."""
    size_bytes = random.choice((100, 1000, 100_000, 900_000))
    messages = b'"messages":[{"role":"user","content":"a"}],"input":"a","prompt":"a","max_tokens":9999'
    members = [b'"model":"m","stream":true', *([messages] if random.random() < 0.8 else [])]
    kind, name, value = random.randrange(4), random.choice(_NAMES), random.choice(_VALUES)
    if kind == 0:
        members.append(b'"%b":[%b]' % (name, b",".join([value] * (size_bytes // (len(value) + 1) + 1))))
    elif kind == 1:
        members += [b'"%b%d":%b' % (name, n, value) for n in range(size_bytes // (len(name + value) + 8))]
    elif kind == 2:
        text = random.choice((b"a", b"\\n", b'\\"', b"\\\\", b"a, b: ", b"\\u0061"))
        text *= size_bytes // len(text)
        role = random.choice((b"user", b"assistant"))
        members.append(b'"messages":[{"role":"%b","content":"%b"}],"prompt":"%b"' % (role, text, text[:600]))
    else:
        members.append(b'"%b":%b' % (name, value))
    random.shuffle(members)
    return b"{" + b",".join(members) + b"}"


def answer(random: Random) -> Iterator[bytes]:
    """What comes of an answer, chunk by chunk."""
    lines = [random.choice(_LINES) + random.choice(_LINE_ENDS) for _ in range(random.choice((1, 1, 2, 5)))]
    unit = b"".join(lines)
    data = random.choice((b"", _LINES[11] + b"\n\n")) + unit * (
        random.choice((200, 20_000, 200_000, 900_000)) // len(unit)
    )
    size_bytes = random.choice((CHUNK_BYTES, 16 * 1024))
    for start in range(0, len(data), size_bytes):
        yield data[start : start + size_bytes]


@contextmanager
def measured(timed: Callable[[Callable[[], None], str], None]) -> Iterator[None]:
    """Have every callback of the loops in memory run by ``timed``, which is told whose it is."""
    run = manual_timers.Call.run

    def one(call: manual_timers.Call) -> None:
        timed(lambda: run(call), repr(call._callback))

    manual_timers.Call.run = one  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        manual_timers.Call.run = run  # type: ignore[method-assign]


class Lost:
    """Some streams at one agent, which is lost while another is there."""

    def __init__(self, random: Random, timed: Callable[[Callable[[], None], str], None]) -> None:
        self._random = random
        self._timed = timed
        self.fleet = Fleet(settings=DispatchSettings(slow_start_s=0), queue=QueueSettings())
        route = random.choice(tuple(WAYS))
        count = random.choice((1, 1, 2, MOST_STREAMS))
        state = DeploymentState("d", "m", "v1", routes=(route,), slots=count, continues={route: WAYS[route]})
        self._one = self.fleet.connect("a", state)
        sent, begun = body(random), list(answer(random))
        self._clients = [self._ask(route, sent) for _ in range(count)]
        for stream in self._one.streams:
            stream.stream.send_head(HEAD)
        self.fleet.settle()
        self._two = self.fleet.connect("b", state)
        for client in self._clients:
            self._feed(client, begun)

    def run(self) -> None:
        """Lose the agent, have another go on, then leave."""
        self._lose(self._one)
        if self._random.random() < 0.3:
            for client in self._clients:  # some leave while what came is being read
                if self._random.random() < 0.5 and client.settled:
                    client.response.abort()
        self.fleet.settle()
        for stream in self._two.open_streams:
            stream.stream.send_head(HEAD)
        self.fleet.settle()
        more = list(answer(self._random))
        for client in self._clients:
            self._feed(client, more)
            client.response.abort()
        self.fleet.settle()
        for agent in (self._one, self._two):
            for stream in agent.open_streams:
                if not agent.endpoint.closed:
                    stream.confirm()
        self.fleet.settle()
        assert self.fleet.dispatcher.records.taken_bytes == 0, "a record outlived its answer"
        assert self.fleet.dispatcher.open_exchanges == 0

    def _ask(self, route: str, sent: bytes) -> Client:
        usage = self._random.choice((UsageMode.KEEP, UsageMode.STRIP))
        return self.fleet.submit(self.fleet.request(route=route, body=RequestBody(sent), usage=usage))

    def _feed(self, client: Client, chunks: list[bytes]) -> None:
        """As it comes from the agent, without the tunnel, whose windows are not what is tested."""
        for attempt in self._attempts(client):
            for chunk in chunks:
                self._timed(partial(attempt.on_data, chunk), "on_data")

    def _attempts(self, client: Client) -> list[Attempt]:
        handlers = [
            stream.handler
            for session in self.fleet.registry.sessions
            for stream in session.endpoint.streams.values()
        ]
        attempts = [each for each in handlers if isinstance(each, Attempt)]
        return [each for each in attempts if each.request is client.request and not each.given_up]

    def _lose(self, agent: FakeAgent) -> None:
        for gateway_end, agent_end in self.fleet._links:
            if agent_end is agent.endpoint and not gateway_end.closed:
                self._timed(partial(gateway_end.lost, TunnelClosed("cut")), "lost")
                agent_end.lost(TunnelClosed("cut"))
