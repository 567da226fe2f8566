"""Agents that send control frames, states and slots without end, beside agents whose streams go on.

In memory, over real tunnels. A storm is a *flood*, all that a socket brings at once, or *paced*: half of what
an agent may spend. Of both: no turn of the event loop is long by the processor's time; the streams of the
others go on exactly; memory stays. A flood is cut with the error that it is; what is paced is cut for no
rate, and takes a small share of a core.
"""

import asyncio
import contextlib
import gc
import logging
import time
import tracemalloc
from random import Random
from unittest.mock import patch

from structlog.testing import capture_logs

from gateway.domain.errors import RequestError
from gateway.scheduling import scheduler
from gateway.scheduling.health import record
from shared.protocol import limits
from shared.protocol.errors import ControlFrameFlood, ErrorCode, ProtocolError, TrunklineError
from tests.fuzz.storm_house import StormHouse
from tests.fuzz.storms import STORMS, Pieces
from tests.support.collection import no_collection
from tests.support.lines import Line
from tests.support.loop_stops import LoopStops
from tests.support.tunnels import Recorder

COSTS = 250
"""A storm takes as long as so many inputs of other fuzzers."""

STOP_S = 0.1
"""The longest turn of the event loop: what is meant is about 10 ms, the rest is for slow machines."""

SHARE = 0.2
"""Of a core, for a storm that is paced."""

FLOOD_S = 2.0
"""Of a core, for a flood until it is cut: some 0.1 s, and more where requests allow an agent more."""

RETURNS_S = 0.5
"""Of a core, for one that was cut, dials again at once and goes on, so often as here."""

READ_BYTES = 64 * 1024
"""What a socket brings at once."""

GROWTH_BYTES = 256 * 1024
"""Of memory, in the second half of a storm that lasts, when all that is bounded is full."""

MEMORY_BYTES = 16 * 1024 * 1024
"""Of memory, in its first half."""

TICK_S = 0.05
_TICKS = 120
_LASTING_TICK_S = 0.25
_LASTING_TICKS = 60
_REMEMBERED = 64
"""Deployments that are gone and models, for what lasts: what is bounded is to be full soon."""
_ATTEMPTS = 3
_RETURNS = 20
_LIAR = "liar"


class Storm:
    """One liar at one house."""

    def __init__(
        self, house: StormHouse, random: Random, kind: str, *, flood: bool, tick_s: float = TICK_S
    ) -> None:
        self.house = house
        self.what = f"a {'flood' if flood else 'paced storm'} of {kind}"
        self.cpu_s = self.longest_s = self.returns_s = 0.0
        self.stops = LoopStops()
        self._flood = flood
        self._tick_s = tick_s
        self._reads = random.random() < 0.7
        self._pieces: Pieces = STORMS[kind](random)
        self._held = b""
        self._asks, self._asked = random.choice((0, 5, 100)), 0
        self._units = 0.0
        self.line: Line = house.dial(_LIAR, Recorder())
        self.session = house.session_of(_LIAR)
        self.errors: list[TrunklineError | None] = []
        closed = self.session.on_session_closed

        def note(error: TrunklineError | None) -> None:
            self.errors.append(error)
            closed(error)

        self.session.on_session_closed = note

    @property
    def cut(self) -> bool:
        return not self.line.gateway.open

    @property
    def long(self) -> str:
        """What took too much of the processor's time; empty: nothing did."""
        share = self.cpu_s / (_TICKS * TICK_S)
        if self.longest_s >= STOP_S:
            return f"{self.longest_s * 1000:.0f} ms in one turn of the event loop"
        if self._flood:
            if self.returns_s > RETURNS_S:
                return f"{self.returns_s:.1f} s when it dials {_RETURNS} times more"
            return f"{self.cpu_s:.1f} s, and it goes on" if self.cpu_s > FLOOD_S else ""
        return f"{share:.0%} of a core" if share > SHARE else ""

    def tick(self) -> None:
        """What the liar sends in one tick, and what the others do meanwhile."""
        for data in self._reads_of_a_tick():
            if self.cut:
                break
            self.stops.longest_s = 0.0
            began_s = time.thread_time()
            with self.stops.measured():
                self.house.loop.call_soon(self.line.gateway.data_received, data)
                self.house.loop.settle()
            self.cpu_s += time.thread_time() - began_s
            self.longest_s = max(self.longest_s, self.stops.longest_s)
        self._ask()
        if self._reads or self.cut:
            self.line.gateway_end.take(1 << 30)
        self.house.tick(self._tick_s)
        late = self.house.lagging()
        assert not late, f"{len(late)} streams of others lag behind {self.what}"

    def _ask(self) -> None:
        """Clients want a model of the liar's: they wait for its slots, or for its answers."""
        models = [model for model in self.house.registry.index.models if model.startswith("evil")]
        with contextlib.suppress(RequestError):
            for model in models[:1] * (self._asks - self._asked):
                self._asked += 1
                self.house.ask(model)

    def _reads_of_a_tick(self) -> list[bytes]:
        if self._flood:
            return [self._next(READ_BYTES) for _ in range(4)]
        self._units += limits.CONTROL_FRAMES_PER_S / 2 * self._tick_s
        data = b""
        while self._units > 0:
            units, piece = next(self._pieces)
            self._units -= units
            data += piece
        return [data] if data else []

    def _next(self, size_bytes: int) -> bytes:
        pieces, held_bytes = [self._held], len(self._held)
        while held_bytes < size_bytes:
            pieces.append(next(self._pieces)[1])
            held_bytes += len(pieces[-1])
        self._held = b"".join(pieces)
        data, self._held = self._held[:size_bytes], self._held[size_bytes:]
        return data


def _come_again(house: StormHouse, random: Random, kind: str) -> float:
    """The liar dials again as soon as it is cut, and goes on. What that takes of the processor's time, in
    seconds."""
    cpu_s = 0.0
    for _ in range(_RETURNS):
        storm = Storm(house, random, kind, flood=True)
        storm.tick()
        cpu_s += storm.cpu_s
    return cpu_s


def _weather(random: Random, kind: str, *, flood: bool) -> Storm:
    """One storm from its beginning to its end."""
    house = StormHouse()
    try:
        storm = Storm(house, random, kind, flood=flood)
        for _ in range(_TICKS):
            storm.tick()
            if flood and (storm.cut or storm.cpu_s > FLOOD_S):
                break
        if storm.cut and flood:
            storm.returns_s = _come_again(house, random, kind)
        if not storm.long:
            _check_end(storm, flood)
        return storm
    finally:
        house.close()


def _check_end(storm: Storm, flood: bool) -> None:
    assert len(storm.line.gateway_end.buffer) <= 1 << 20, f"{storm.what}: the gateway keeps what nobody reads"
    assert len(storm.house.registry.index.models) <= storm.house.registry.settings.max_models
    for error in storm.errors:
        assert isinstance(error, TrunklineError), f"{storm.what} was cut without an error"
        assert error.code is not ErrorCode.INTERNAL, f"{storm.what}: {error!r}"
    if flood:
        assert storm.cut, f"{storm.what} is not cut"
        assert any(isinstance(error, ProtocolError) for error in storm.errors), (
            f"{storm.what}: {storm.errors}"
        )
    else:
        wrong = [error for error in storm.errors if isinstance(error, ControlFrameFlood)]
        assert not wrong, f"{storm.what}: {wrong}"


def _one(seed: int) -> None:
    """The same storm again where a turn was long: a machine that gives its time away does so once."""
    for _ in range(_ATTEMPTS):
        random = Random(seed)
        kind, flood = random.choice(list(STORMS)), random.random() < 0.5
        storm = _weather(random, kind, flood=flood)
        if not storm.long:
            return
    raise AssertionError(f"{storm.what}: {storm.long}")


def _held_after(storm: Storm, ticks: int) -> int:
    """Bytes of memory after so many more ticks."""
    for _ in range(ticks):
        storm.tick()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _memory(seed: int) -> None:
    """A paced storm that lasts, for what it leaves in memory."""
    random = Random(seed)
    kind = random.choice(("churning", "churning", "mixed", random.choice(list(STORMS))))
    with patch.object(record, "MOST_GONE", _REMEMBERED), patch.object(scheduler, "MOST_MODELS", _REMEMBERED):
        house = StormHouse(honest=1)
        tracemalloc.start()
        try:
            storm = Storm(house, random, kind, flood=False, tick_s=_LASTING_TICK_S)
            held_bytes = _held_after(storm, _LASTING_TICKS)
            grown = _held_after(storm, _LASTING_TICKS) - held_bytes
        finally:
            tracemalloc.stop()
            house.close()
    for_s = _LASTING_TICKS * _LASTING_TICK_S
    assert grown <= GROWTH_BYTES, f"{storm.what}: memory grows by {grown:,} bytes in {for_s:.0f} s"
    assert held_bytes <= MEMORY_BYTES, f"{storm.what}: {held_bytes:,} bytes of memory"


def fuzz(random: Random, inputs: int) -> int:
    """Storms are fewer than ``inputs``: each is thousands of frames."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    storms = max(1, inputs // COSTS)
    try:
        with no_collection(), capture_logs():
            for number in range(storms):
                _one(random.getrandbits(32))
                if number % 4 == 0:
                    _memory(random.getrandbits(32))
        return storms * COSTS
    finally:
        asyncio.set_event_loop(None)
