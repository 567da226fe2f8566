"""An agent that dials a gateway's acceptor over a real socket."""

import asyncio
from pathlib import Path

import pytest

from shared.identity import JoinToken
from shared.link.dialer import DialSettings, Rejected, TunnelDialer, dial_with
from shared.link.membership import Membership
from shared.protocol.errors import ErrorCode, HandshakeRejected
from shared.protocol.messages import DeploymentState
from tests.agent.support.canned import until
from tests.agent.support.joined import Doorman, PlayedBackend
from tests.shared.link.dialled_world import sessions
from tests.support.identities import OTHER_GATEWAY, TOKEN
from tests.support.tunnels import Recorder, accepting, request_head


class DialledAgent:
    """An agent's dialer on a real socket."""

    def __init__(self, url: str, directory: Path, token: JoinToken = TOKEN) -> None:
        self.membership = Membership.open(directory, join=token.encode(), name="gpu-1", default_name="x")
        self.backend = PlayedBackend(DeploymentState(id="d1", model="demo", slots=2))
        clock = asyncio.get_running_loop().time
        self.dialer = TunnelDialer(
            self.membership,
            sessions(self.membership, self.backend, clock),
            dial_with(DialSettings(url=url), clock),
            clock=clock,
            chance=lambda: 0.0,
        )


async def test_over_a_real_socket_it_joins_serves_and_leaves(tmp_path: Path, no_leaks: None) -> None:
    acceptor = Doorman()
    async with accepting(acceptor) as url, asyncio.TaskGroup() as tasks:
        real = DialledAgent(url, tmp_path)
        running = tasks.create_task(real.dialer.run())
        state = await acceptor.listener.until("state")
        assert [deployment.model for deployment in state.deployments] == ["demo"]
        assert await acceptor.listener.until("slots") == {"d1": 2}
        answer = Recorder()
        stream = acceptor.tunnels[0].endpoint.open(request_head(), answer)
        stream.end()
        real.backend.response.pieces.put_nowait(b"data: x\n\n")
        real.backend.response.pieces.put_nowait(None)
        await answer.until("end")
        assert answer.body == b"data: x\n\n"
        real.dialer.close("the agent stopped")
        await running
        await acceptor.listener.until("session_closed")


async def test_over_a_real_socket_a_cut_is_answered_at_once(tmp_path: Path, no_leaks: None) -> None:
    acceptor = Doorman()
    async with accepting(acceptor) as url, asyncio.TaskGroup() as tasks:
        real = DialledAgent(url, tmp_path)
        running = tasks.create_task(real.dialer.run())
        await acceptor.listener.until("slots")
        acceptor.tunnels[0].abort()
        await until(lambda: acceptor.listener.names().count("attached") == 2)
        real.dialer.close("done")
        running.cancel()


async def test_over_a_real_socket_a_no_is_final(tmp_path: Path, no_leaks: None) -> None:
    acceptor = Doorman(HandshakeRejected(ErrorCode.UNAUTHENTICATED, "expired"))
    async with accepting(acceptor) as url:
        with pytest.raises(Rejected, match="expired"):
            await DialledAgent(url, tmp_path).dialer.run()


async def test_over_a_real_socket_the_wrong_gateway_is_not_joined(tmp_path: Path, no_leaks: None) -> None:
    async with accepting(Doorman()) as url:
        other = JoinToken.new(OTHER_GATEWAY.fingerprint)
        with pytest.raises(Rejected, match="the join token is for gateway"):
            await DialledAgent(url, tmp_path, other).dialer.run()
