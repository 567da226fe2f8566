"""What the agent does with what a gateway says on one session."""

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from shared.handshake import Renewal
from shared.handshake.renewal import VERB as RENEW
from shared.link.publisher import Publisher
from shared.link.session_slots import SessionSlots
from shared.protocol.demand import Demand
from shared.protocol.endpoint import SessionEndpoint, Stream
from shared.protocol.errors import ErrorCode, FrameMalformed, HandshakeError, TrunklineError
from shared.protocol.messages import AgentState, Command, CommandResult, Drain
from shared.protocol.other_requests import OtherSessions, OthersTeller
from shared.protocol.others import Others
from shared.protocol.peers import OTHERS, GatewayPeer, Peers

log = structlog.get_logger("link.session")


class StreamRunner(Protocol):
    """Has the requests of streams answered; ``agent.requests.runner.RequestRunner`` at an agent."""

    def open(self, session: Hashable, stream: Stream, *, agreed: Collection[str] = ()) -> None:
        """A request has come in ``session``; refused at once where there is no place for it. ``agreed`` are
        the capabilities that are agreed on in the session (PROTOCOL §8.5)."""


@dataclass(eq=False, slots=True)
class GatewaySession:
    """Implements :class:`shared.protocol.endpoint.SessionListener`. The key of its requests in the
    registry."""

    runner: StreamRunner
    publisher: Publisher
    carry_out: Callable[[Command], CommandResult]
    """Begins a command at once."""
    renew: Callable[[Renewal], None]
    """Takes what the gateway gives anew, or raises HandshakeError."""
    slots: SessionSlots | None = None
    """Divides slots among sessions; None: there is one session only."""
    others: OtherSessions | None = None
    """Tells sessions of each other's requests; None: none is told."""
    named: Callable[[tuple[GatewayPeer, ...]], None] = lambda peers: None
    """Told the processes of the gateway, as WELCOME or PEERS named them."""
    _endpoint: SessionEndpoint | None = field(default=None, init=False)
    _agreed: Collection[str] = field(default=(), init=False)

    def begin(
        self, endpoint: SessionEndpoint, process: str | None = None, capabilities: Collection[str] = ()
    ) -> None:
        """The tunnel is up, to that process of a gateway that has several: say what there is.
        ``capabilities`` is what is agreed on with it (PROTOCOL §8.5)."""
        self._endpoint = endpoint
        self._agreed = frozenset(capabilities)
        if self.slots is not None and process is not None:
            self.slots.add(self, process)
        self.publisher.attach(endpoint, self)
        if self.others is not None and process is not None:
            self.others.add(self, self._teller(endpoint) if OTHERS in capabilities else None)

    def _teller(self, endpoint: SessionEndpoint) -> OthersTeller:
        def send(others: Others) -> int:
            return 0 if endpoint.closed else endpoint.send_others(others)

        return OthersTeller(time.monotonic, _call_later, send, waits=lambda: endpoint.session.others_wait)

    def drain(self, reason: str, deadline_s: float) -> None:
        """Tell the gateway that the agent is about to leave."""
        self._quietly(lambda endpoint: endpoint.send_drain(Drain(reason, deadline_s)))

    def close(self, code: ErrorCode, reason: str) -> None:
        self._quietly(lambda endpoint: endpoint.close(code, reason))

    def _quietly(self, act: Callable[[SessionEndpoint], None]) -> None:
        if self._endpoint is None or self._endpoint.closed:
            return
        try:
            act(self._endpoint)
        except TrunklineError:
            log.debug("not sent: the session is over")

    def on_open(self, stream: Stream) -> None:
        self.runner.open(self, stream, agreed=self._agreed)

    def on_demand(self, demands: Mapping[str, Demand]) -> None:
        if self.slots is not None and self._endpoint is not None:
            self.slots.set_demands(self, demands, self._endpoint.rtt_s)

    def on_peers(self, peers: Peers) -> None:
        self.named(peers.newest)

    def on_command(self, command: Mapping[str, Any]) -> None:
        """Each is answered at once (PROTOCOL §4.8)."""
        try:
            if command.get("verb") == RENEW:
                renewal = Renewal.read(command)
                self.renew(renewal)
                answer = CommandResult(renewal.id, True).to_dict()
            else:
                answer = self.carry_out(Command.read(command)).to_dict()
        except (FrameMalformed, HandshakeError) as error:
            answer = {"id": command.get("id"), "ok": False, "error": str(error)}
        self._quietly(lambda endpoint: endpoint.send_command(answer))

    def on_drain(self, drain: Drain) -> None:
        log.info("gateway drains", reason=drain.reason, deadline_s=drain.deadline_s)

    # While it is suspended requests go on, and the dialer says what becomes of the session. What changes
    # meanwhile is sent by itself once it is resumed: of every level and state the newest waits.
    # The slots that it does not use are for other sessions meanwhile.
    def on_session_suspended(self, error: TrunklineError | None) -> None:
        if self.slots is not None:
            self.slots.set_linked(self, False)
        if self.others is not None:
            self.others.pause(self, True)

    def on_session_resumed(self) -> None:
        if self.slots is not None:
            self.slots.set_linked(self, True)
        if self.others is not None:
            self.others.pause(self, False)

    def on_session_closed(self, error: TrunklineError | None) -> None:
        self.publisher.detach(self)
        if self.others is not None:
            self.others.remove(self)
        if self.slots is not None:
            self.slots.remove(self)

    # Never called: these go to gateways only.
    def on_slots(self, levels: Mapping[str, int]) -> None: ...
    def on_state(self, state: AgentState) -> None: ...
    def on_result(self, result: Mapping[str, Any]) -> None: ...
    def on_others(self, others: Others) -> None: ...


def _call_later(delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, call)
