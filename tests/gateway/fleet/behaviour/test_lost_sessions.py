"""What becomes of sessions that have lost their tunnels, and of those that have ended."""

from gateway.fleet.session import AgentSession
from shared.protocol.errors import ErrorCode, TunnelClosed
from tests.gateway.fleet.fleet import Fleet, deployment


def test_a_session_is_given_up_once_it_has_had_no_tunnel_for_long() -> None:
    fleet = Fleet()
    agents = [fleet.connect(name, deployment(name)) for name in "abc"]
    sessions = [fleet.session(agent) for agent in agents]

    def cut(which: int) -> None:
        sessions[which].endpoint.suspend(TunnelClosed("cut"))

    def there() -> list[bool]:
        fleet.registry.give_up_lost(30.0)
        return [not session.closed for session in sessions]

    cut(0)
    cut(1)
    fleet.loop.advance(20.0)
    sessions[1].endpoint.resume(agents[1].endpoint.session.log.received)
    assert there() == [True, True, True]
    cut(1)
    fleet.loop.advance(10.0)
    assert there() == [False, True, True]
    fleet.loop.advance(19.0)
    assert there() == [False, True, True]
    fleet.loop.advance(1.0)
    assert there() == [False, False, True]
    assert [session.principal.name for session in fleet.registry.sessions] == ["c"]


def test_a_session_that_ends_is_told_of_once() -> None:
    fleet = Fleet()
    ended: list[AgentSession] = []
    fleet.registry.ended = ended.append
    one, two = fleet.connect("a", deployment()), fleet.connect("b", deployment())
    fleet.session(one).close(ErrorCode.REVOKED, "revoked")
    fleet.cut(two)
    fleet.cut(one)
    assert ended == [fleet.session(one), fleet.session(two)]
