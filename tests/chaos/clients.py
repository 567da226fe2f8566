"""Clients over plain HTTP: patient, slow, and such that go away."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any

import aiohttp
import orjson

from tests.chaos.answers import Answer, read_stream, read_whole
from tests.chaos.asks import Ask, Behaviour
from tests.chaos.checks import Failure, judge
from tests.chaos.outcome import Outcome

PATIENCE_S = 150.0
"""What no request may exceed."""
MODEL_HEADER = "x-chaos-model"
"""The model's name, for balancers that read no bodies; the gateway passes it by."""
_SLOW_TURNS = 12
_SLOW_S = 0.4
_RECEIVE_BYTES = 16 * 1024


@dataclass(slots=True)
class _Reading:
    data: bytearray = field(default_factory=bytearray)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    last_s: float | None = None
    pause_s: float = 0.0
    failure: Failure | None = None
    left: bool = False


async def ask_http(
    session: aiohttp.ClientSession,
    ask: Ask,
    clock: Callable[[], float],
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Outcome:
    """Send one request, read its answer as its client would, judge it. Raises nothing."""
    began_s = clock()
    seen = _Reading()
    leaving = ask.behaviour is Behaviour.VANISHING
    try:
        async with asyncio.timeout(ask.patience_s if leaving else PATIENCE_S):
            await _converse(session, ask, seen, clock, headers)
    except TimeoutError:
        seen.left = leaving
        seen.failure = None if leaving else Failure("connection", f"silent for {PATIENCE_S:.0f} s")
    except (aiohttp.ClientError, OSError) as error:
        seen.failure = Failure("connection", type(error).__name__, seen.status, str(error)[:200])
    return _outcome(ask, seen, began_s, clock())


async def _converse(
    session: aiohttp.ClientSession,
    ask: Ask,
    seen: _Reading,
    clock: Callable[[], float],
    headers: Mapping[str, str],
) -> None:
    body = orjson.dumps(ask.body())
    sent = {MODEL_HEADER: ask.model, **headers}
    async with session.post(ask.path, data=body, headers=sent) as response:
        seen.status = response.status
        seen.headers = {name.lower(): value for name, value in response.headers.items()}
        if not ask.stream or response.status != 200:
            seen.data += await response.read()
            return
        if ask.behaviour is Behaviour.UNREADING:
            _take_little(response)
            await asyncio.sleep(ask.tokens / ask.tokens_per_s)
        turns = _SLOW_TURNS if ask.behaviour is Behaviour.SLOW else 0
        random = Random(ask.number)
        async for data in response.content.iter_any():
            now_s = clock()
            if seen.last_s is not None:
                seen.pause_s = max(seen.pause_s, now_s - seen.last_s)
            seen.last_s = now_s
            seen.data += data
            if turns:
                turns -= 1
                await asyncio.sleep(random.uniform(0, _SLOW_S))
                seen.last_s = clock()


def _take_little(response: aiohttp.ClientResponse) -> None:
    """The client's system is to take next to nothing that the client does not read."""
    transport = response.connection.transport if response.connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)


def _outcome(ask: Ask, seen: _Reading, began_s: float, ended_s: float) -> Outcome:
    failure, answer = seen.failure, Answer()
    try:
        if ask.stream and seen.status == 200:
            answer = read_stream(ask.route, _whole_events(bytes(seen.data), failure is not None or seen.left))
        elif failure is None and not seen.left:
            answer = read_whole(ask.route, bytes(seen.data))
    except (KeyError, TypeError, IndexError) as error:
        answer.problem(f"a shape that was not understood: {error!r}")
    if failure is None and (answer.error is not None or seen.status not in (0, 200)):
        failure = failure_of(answer.error or {}, seen.status)
    finding = judge(ask, answer, failure, left=seen.left)
    return Outcome(
        ask,
        finding,
        failure,
        began_s,
        ended_s,
        pause_s=seen.pause_s,
        agent=seen.headers.get("x-trunkline-agent", ""),
        attempts=seen.headers.get("x-trunkline-attempts", ""),
        request_id=seen.headers.get("x-request-id", ""),
    )


def _whole_events(data: bytes, broken: bool) -> bytes:
    """Of a connection that was cut, what a client would have taken: whole events."""
    return data[: data.rfind(b"\n\n") + 2] if broken and b"\n\n" in data else b"" if broken else data


def failure_of(error: dict[str, Any], status: int) -> Failure:
    """The failure that an error object tells, in a body or in a stream (there the status is 200)."""
    code = str(error.get("code") or error.get("type") or "unnamed")
    where = "frame" if status == 200 else "head"
    return Failure(where, code, 0 if status == 200 else status, str(error.get("message", ""))[:200])
