"""What the agent does with what a gateway says on one session."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from agent.link.publisher import Publisher
from agent.requests.runner import RequestRunner
from shared.handshake import Renewal
from shared.handshake.renewal import VERB as RENEW
from shared.protocol.endpoint import SessionEndpoint, Stream
from shared.protocol.errors import ErrorCode, FrameMalformed, HandshakeError, TrunklineError
from shared.protocol.messages import AgentState, Command, CommandResult, Drain

log = structlog.get_logger("agent.link.session")


@dataclass(eq=False, slots=True)
class GatewaySession:
    """Implements :class:`shared.protocol.endpoint.SessionListener`. The key of its requests in the
    registry."""

    runner: RequestRunner
    publisher: Publisher
    carry_out: Callable[[Command], CommandResult]
    """Begins a command at once."""
    renew: Callable[[Renewal], None]
    """Takes what the gateway gives anew, or raises HandshakeError."""
    _endpoint: SessionEndpoint | None = field(default=None, init=False)

    def begin(self, endpoint: SessionEndpoint) -> None:
        """The tunnel is up: say what there is."""
        self._endpoint = endpoint
        self.publisher.attach(endpoint, self)

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
        self.runner.open(self, stream)

    def on_demand(self, waiting: Mapping[str, int]) -> None:
        """With one gateway there is nothing to share out by what waits there."""

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
    def on_session_suspended(self, error: TrunklineError | None) -> None: ...
    def on_session_resumed(self) -> None: ...

    def on_session_closed(self, error: TrunklineError | None) -> None:
        self.publisher.detach(self)

    # Never called: these go to gateways only.
    def on_slots(self, levels: Mapping[str, int]) -> None: ...
    def on_state(self, state: AgentState) -> None: ...
    def on_result(self, result: Mapping[str, Any]) -> None: ...
