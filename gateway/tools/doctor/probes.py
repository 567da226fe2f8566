"""Checks of what lies between a client and its gateway: does it pass on upgrades, streams, silence,
bodies."""

import base64
import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from time import monotonic

import orjson

from gateway.tools.doctor.keyed import NO_ROLE, KeyedGateway, NotAsked
from gateway.tools.doctor.options import MIB
from gateway.tools.doctor.remedies import proxy_of, remedy_for
from gateway.tools.doctor.way import NoWay, TimedResponse
from shared.process.checks import Check, CheckOutcome, failed, passed, skipped
from shared.process.connection_errors import explain_http_error
from shared.tunnel import PATH, SUBPROTOCOL

EVENTS = 4
GAP_S = 0.4
EARLIER = "This gateway is of an earlier version and has no counterpart for this check."
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""Of RFC 6455, section 1.3."""

Attempt = Callable[[KeyedGateway], str]
"""Says what is wrong at a gateway; nothing if nothing is."""


@dataclass(frozen=True)
class ProxyChecks:
    """Looks at one way; :attr:`direct` is one to the same gateway without what is looked at."""

    gateway: KeyedGateway
    idle_s: float = 20.0
    """Silence that is tried."""
    body_bytes: int = 16 * MIB
    """Length of a body that is tried, unless the gateway takes less."""
    direct: KeyedGateway | None = None

    def all(self) -> list[Check]:
        answers = ("gateway-answers",)
        keyed = (*answers, "key")
        more_s = 30.0
        return [
            Check("websocket-upgrade", self.websocket_upgrade, after=answers, limit_s=more_s),
            Check("sse-buffering", self.sse_buffering, after=keyed, limit_s=2 * more_s),
            Check("idle-cut", self.idle_cut, after=keyed, limit_s=2 * self.idle_s + more_s),
            Check("body-limit", self.body_limit, after=keyed, limit_s=4 * more_s),
        ]

    # --- WebSocket ---

    def websocket_upgrade(self) -> CheckOutcome:
        reason, proxy = _upgrade(self.gateway)
        if not reason:
            return passed("A WebSocket comes through to the gateway.")
        return self._wrong(
            "websocket-upgrade", f"No WebSocket comes through: {reason}", proxy, lambda g: _upgrade(g)[0]
        )

    # --- Events ---

    def sse_buffering(self) -> CheckOutcome:
        try:
            times, proxy = _event_times(self.gateway)
        except NotAsked as error:
            return skipped(str(error))
        late = _held_back(times)
        if not late:
            return passed(f"Events arrive one by one (the first after {times[0] * 1000:.0f} ms).")
        return self._wrong("sse-buffering", late, proxy, lambda g: _held_back(_event_times(g)[0]))

    # --- Silence ---

    def idle_cut(self) -> CheckOutcome:
        try:
            reason, proxy = _silence(self.gateway, self.idle_s)
        except NotAsked as error:
            return skipped(str(error))
        if not reason:
            return passed(
                f"A request that waits {self.idle_s:g} s for its answer is not cut off. Answers in one "
                "piece may "
                "take longer: --idle SECONDS tries that."
            )
        return self._wrong("idle-cut", reason, proxy, lambda g: _silence(g, self.idle_s)[0])

    # --- Bodies ---

    def body_limit(self) -> CheckOutcome:
        try:
            size = min(self.body_bytes, int(self.gateway.diagnosis["body_bytes"]))
            reason, proxy = _body(self.gateway, size)
        except NotAsked as error:
            return skipped(str(error))
        except (KeyError, ValueError):
            return skipped(EARLIER)
        if not reason:
            return passed(f"A body of {size / MIB:g} MiB comes through.", bytes=size)
        return self._wrong("body-limit", reason, proxy, lambda g: _body(g, size)[0])

    def _wrong(self, check: str, words: str, proxy: str | None, again: Attempt) -> CheckOutcome:
        """``again`` tries the same at another way and says what is wrong there, if anything is."""
        if self.direct is not None:
            try:
                there = again(self.direct)
            except NotAsked as error:
                there = str(error)
            if there:
                return failed(
                    f"{words.rstrip('.')}; and so without the proxy ({there.rstrip('.')}).",
                    "Look at the gateway itself first.",
                    proxy=proxy,
                )
        return failed(words, remedy_for(check, proxy), proxy=proxy)


def _headers(response: HTTPResponse) -> Mapping[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _proxy(response: TimedResponse) -> str | None:
    return proxy_of(_headers(response.response))


def _upgrade(gateway: KeyedGateway) -> tuple[str, str | None]:
    """Why no WebSocket comes through, empty if one does; and which proxy answered. Nothing is said on it: the
    gateway shows who it is first, and whoever says nothing has not connected as an agent."""
    way = gateway.way
    key = base64.b64encode(os.urandom(16))
    try:
        line = way.open()
    except NoWay as error:
        return f"{error}.", None
    target = way.target
    head = (
        f"GET {target.prefix}{PATH} HTTP/1.1\r\nHost: {target.authority}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key.decode()}\r\n"
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\nUser-Agent: trunkline-doctor\r\n\r\n"
    )
    with line.socket as sock:
        sock.settimeout(way.timeout_s)
        try:
            sock.sendall(head.encode())
            response = HTTPResponse(sock, method="GET")
            response.begin()
            return _upgraded(sock, response, key), proxy_of(_headers(response))
        except (OSError, HTTPException) as error:
            return f"{explain_http_error(target.url, error)}.", None


def _upgraded(sock: socket.socket, response: HTTPResponse, key: bytes) -> str:
    wanted = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest()).decode()
    if response.status != 101:
        return f"the request for one is answered with status {response.status}."
    if response.getheader("sec-websocket-accept") != wanted:
        return "the answer is of somebody who did not see the request's key."
    # the first frame may have come with the head, and lie in the response's buffer
    first = response.fp.read(2) if response.fp is not None else sock.recv(2)
    return "" if first else "it is closed before the gateway has said anything."


def _event_times(gateway: KeyedGateway) -> tuple[list[float], str | None]:
    """When each event came, from the request on. Raises NotAsked."""
    path = f"/admin/diagnosis/events?count={EVENTS}&gap_s={GAP_S}"
    times: list[float] = []
    with gateway.ask("GET", path, timeout_s=EVENTS * GAP_S + 20.0) as response:
        _check_status(response)
        text = b""
        for at_s, piece in response.pieces():
            text += piece
            ended = text.count(b"\n\n")
            times += [at_s - response.sent_s] * (ended - len(times))
    if len(times) < EVENTS:
        raise NotAsked(f"Only {len(times)} of {EVENTS} events came.")
    return times, _proxy(response)


def _held_back(times: list[float]) -> str:
    """What is wrong with events that came at these times; empty if nothing is."""
    spread_s, wanted_s = times[-1] - times[0], (EVENTS - 1) * GAP_S
    if spread_s >= wanted_s / 2:
        return ""
    return (
        f"Events sent during {wanted_s:.1f} s arrive together within {spread_s:.1f} s: something holds "
        "the stream "
        "back."
    )


def _silence(gateway: KeyedGateway, idle_s: float) -> tuple[str, str | None]:
    """What is wrong with silence of so long, if anything; raises NotAsked."""
    began_s = monotonic()
    try:
        with gateway.ask(
            "GET", f"/admin/diagnosis/silence?s={idle_s:g}", timeout_s=idle_s + 15.0
        ) as response:
            if response.status == 200:
                orjson.loads(response.body())
                return "", None
            if response.status in (502, 503, 504, 520, 522, 524, 408):
                after_s = response.head_s - response.sent_s
                why = f"is answered with status {response.status} after {after_s:.1f} s"
                return f"A request that waits {idle_s:g} s for its answer {why}.", _proxy(response)
            _check_status(response)
            raise NotAsked(f"The gateway answers with status {response.status}.")
    except NotAsked as error:
        if not isinstance(error.__cause__, OSError | HTTPException):
            raise
        after_s = monotonic() - began_s
        return f"A request that waits {idle_s:g} s for its answer is cut off after {after_s:.1f} s.", None


def _body(gateway: KeyedGateway, size: int) -> tuple[str, str | None]:
    """What is wrong with a body of so many bytes, if anything; raises NotAsked."""
    long = f"A body of {size / MIB:g} MiB"
    try:
        with gateway.ask("POST", "/admin/diagnosis/body", timeout_s=60.0, length=size) as response:
            if response.status == 413:
                return f"{long} is refused with status 413.", _proxy(response)
            _check_status(response)
            received = orjson.loads(response.body()).get("received_bytes")
    except NotAsked as error:
        if not isinstance(error.__cause__, OSError | HTTPException):
            raise
        return f"{long} is cut off while it is sent ({str(error).rstrip('.')}).", None
    return "" if received == size else f"Of a body of {size} bytes {received} arrive.", _proxy(response)


def _check_status(response: TimedResponse) -> None:
    """Raises NotAsked for what is no success."""
    if response.status == 403:
        raise NotAsked(NO_ROLE)
    if response.status == 404:
        raise NotAsked(EARLIER)
    if response.status != 200:
        raise NotAsked(f"The gateway answers with status {response.status}.")
