"""What a DATA frame costs the tunnel's two ends: two endpoints joined in memory, in one process.

``python -m tests.bench.datapath [session|tunnel|both] [SECONDS]``: microseconds of CPU for each frame of a
token's size, at the side that sends and at the side that receives, with 1, 10 and 100 frames a message. The
receiver takes everything at once, so CREDIT and ACK are in it. ``tunnel`` adds the WebSocket, the
transport's calls and the event loop's turn, without a socket.
"""

import sys
import time
from typing import NamedTuple

from shared.protocol import limits
from shared.protocol.endpoint import SessionEndpoint, Stream
from shared.protocol.frames import decode_message
from shared.protocol.messages import ResponseHead
from shared.tunnel.write_scheduler import GATHER_S
from tests.support.lines import Line, LineAcceptor, ManualLoop
from tests.support.session_pair import SessionPair, request_head
from tests.support.tunnels import Recorder

STREAMS = 200
TOKEN = bytes(200)
TURNS = 20
"""Turns of the loop between two looks at the clock."""

ROOM_BYTES = limits.SOCKET_BUFFER_BYTES + 1


class Taker(Recorder):
    """A handler that takes what comes at once, as a client that reads does."""

    stream: Stream

    def on_data(self, data: bytes) -> None:
        self.stream.consumed(len(data))


class Figures(NamedTuple):
    """Of one DATA frame."""

    sender_us: float
    receiver_us: float
    back_frames: float
    """CREDIT and ACK; not counted with tunnels."""
    back_bytes: float


class Sessions:
    """Agent and gateway without a tunnel in between."""

    def __init__(self) -> None:
        self.pair = pair = SessionPair()
        self.woken = False
        self.gateway = SessionEndpoint(pair.gateway, lambda: time.monotonic(), self._wake)
        self.agent = SessionEndpoint(pair.agent, lambda: time.monotonic(), self._wake)
        self.agent.listener = self.listener = Recorder()
        self.takers, self.senders = _open_streams(self.gateway, self._settle, self.listener)

    def _wake(self) -> None:
        self.woken = True

    def _settle(self) -> None:
        pair = self.pair
        while pair.send(pair.gateway) or pair.send(pair.agent):
            while pair.to_agent:
                pair.agent.receive_message(pair.to_agent.popleft(), 0.0)
            while pair.to_gateway:
                pair.gateway.receive_message(pair.to_gateway.popleft(), 0.0)
            self.agent.dispatch()
            self.gateway.dispatch()

    def send(self, streams: list[Stream]) -> list[bytes]:
        """One turn of the sender's loop."""
        for stream in streams:
            stream.send_data(TOKEN)
        session, messages = self.agent.session, []
        while session.wants_to_send and (more := session.data_to_send(ROOM_BYTES, 0.0)):
            messages += more
            self.agent.dispatch()
        return messages

    def receive(self, messages: list[bytes]) -> list[bytes]:
        """One turn of the receiver's; what goes back."""
        for message in messages:
            self.gateway.session.receive_message(message, 0.0)
            self.gateway.dispatch()
        session = self.gateway.session
        return session.data_to_send(ROOM_BYTES, 0.0) if session.wants_to_send else []

    def take_back(self, messages: list[bytes]) -> None:
        for message in messages:
            self.agent.session.receive_message(message, 0.0)
            self.agent.dispatch()


class Tunnels:
    """The same with both WebSockets, on a loop and transports in memory."""

    def __init__(self) -> None:
        self.loop = loop = ManualLoop()
        acceptor = LineAcceptor(loop)
        self.listener = Recorder()
        self.line = line = Line(loop, acceptor, self.listener)
        line.pump()
        self.takers, self.senders = _open_streams(line.gateway.endpoint, line.pump, self.listener)

    def send(self, streams: list[Stream]) -> list[bytes]:
        self.loop.stand_still(2 * GATHER_S)  # or the frames would be gathered until time moves
        for stream in streams:
            stream.send_data(TOKEN)
        pieces, end = [], self.line.agent_end
        while self._turn() or end.buffer:
            pieces.append(end.take(1 << 20))
        return pieces

    def receive(self, pieces: list[bytes]) -> list[bytes]:
        for piece in pieces:
            self.line.gateway.data_received(piece)
        while self._turn():
            pass
        back = self.line.gateway_end.take(1 << 20)
        return [back] if back else []

    def take_back(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.line.agent.data_received(piece)

    def _turn(self) -> bool:
        """Runs what is ready; a loop's own cost is no tunnel's."""
        ready = self.loop._ready  # type: ignore[attr-defined]
        for _ in range(len(ready)):
            ready.popleft()._run()
        return bool(ready)


def _open_streams(
    gateway: SessionEndpoint, settle: object, listener: Recorder
) -> tuple[list[Taker], list[Stream]]:
    takers = []
    for _ in range(STREAMS):
        taker = Taker()
        taker.stream = gateway.open(request_head(), taker)
        taker.stream.end()
        takers.append(taker)
    settle()  # type: ignore[operator]
    for stream in listener.streams:
        stream.send_head(ResponseHead(200, ()))
    settle()  # type: ignore[operator]
    return takers, listener.streams


def measure(house: Sessions | Tunnels, frames: int, for_s: float) -> Figures:
    """The cost of frames that leave so many at a time."""
    sender_s = receiver_s = 0.0
    back_bytes = back_frames = done = at = 0
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        turns = [
            [house.senders[(at + i * frames + n) % STREAMS] for n in range(frames)] for i in range(TURNS)
        ]
        at += frames * TURNS
        start = time.process_time()
        sent = [house.send(streams) for streams in turns]
        between = time.process_time()
        back = [house.receive(messages) for messages in sent]
        received = time.process_time()
        for messages in back:
            house.take_back(messages)
        sender_s += between - start + time.process_time() - received
        receiver_s += received - between
        done += frames * TURNS
        back_bytes += sum(len(message) for messages in back for message in messages)
        if isinstance(house, Sessions):
            back_frames += sum(len(decode_message(m)[1]) for messages in back for m in messages)
    return Figures(sender_s / done * 1e6, receiver_s / done * 1e6, back_frames / done, back_bytes / done)


def main() -> None:
    kinds = [sys.argv[1]] if len(sys.argv) > 1 and sys.argv[1] != "both" else ["session", "tunnel"]
    for_s = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    for kind in kinds:
        house = Sessions() if kind == "session" else Tunnels()
        for frames in (1, 10, 100):
            figures = measure(house, frames, for_s)
            print(  # noqa: T201
                f"{kind:8} {frames:4} a message: sender {figures.sender_us:6.2f} us, "
                f"receiver {figures.receiver_us:6.2f} us; back {figures.back_frames:.4f} frames, "
                f"{figures.back_bytes:.2f} bytes each"
            )


if __name__ == "__main__":
    main()
