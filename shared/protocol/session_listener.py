"""What a program does about a whole session, as its endpoint tells it (:mod:`shared.protocol.endpoint`)."""

from collections.abc import Mapping
from typing import Any, Protocol

from shared.protocol.demand import Demand
from shared.protocol.errors import TrunklineError
from shared.protocol.messages import AgentState, Drain
from shared.protocol.others import Others
from shared.protocol.peers import Peers


class SessionListener(Protocol):
    """Is told what concerns the whole session. The rules are those of
    :class:`~shared.protocol.stream_handler.StreamHandler`."""

    def on_open(self, stream: Any) -> None:
        """A request came (agent); ``stream`` is a :class:`~shared.protocol.endpoint.Stream`. Set
        ``stream.handler`` before returning."""

    def on_slots(self, levels: Mapping[str, int]) -> None:
        """Deployment id → requests that may be in flight there (gateway)."""

    def on_state(self, state: AgentState) -> None:
        """All about the agent, whole (gateway)."""

    def on_demand(self, demands: Mapping[str, Demand]) -> None:
        """Model → what waits for it at the gateway (agent)."""

    def on_peers(self, peers: Peers) -> None:
        """The processes of the gateway have changed (agent)."""

    def on_others(self, others: Others) -> None:
        """What runs for other processes has changed (gateway)."""

    def on_command(self, command: Mapping[str, Any]) -> None:
        """A COMMAND came; answer it with ``endpoint.send_command`` (agent)."""

    def on_result(self, result: Mapping[str, Any]) -> None:
        """The RESULT of a COMMAND (gateway)."""

    def on_drain(self, drain: Drain) -> None:
        """The peer wants no new streams."""

    def on_session_suspended(self, error: TrunklineError | None) -> None:
        """The tunnel is gone (``error`` says why) or silent (None). The streams have been told.

        Call ``endpoint.lost`` to give the session up instead of waiting for another tunnel."""

    def on_session_resumed(self) -> None:
        """The session goes on; the streams have been told."""

    def on_session_closed(self, error: TrunklineError | None) -> None:
        """The session is over; ``error`` is None when we closed it ourselves.

        Called before the streams are told, so that what they gave up is not sent there again."""
