"""A WebSocket of a client of the parent reaches an engine behind the child; messages pass both ways."""

from dataclasses import replace

from gateway.domain.errors import RouteNotSupported
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import UPGRADED, DeploymentState, RequestHead, ResponseHead, Trailers
from shared.protocol.routes import UPGRADE_NEED
from shared.protocol.upgraded import CloseNotice, MessagePiece, PieceKind, PieceReader, encode_close
from shared.protocol.upgraded import encode_pieces as pieces
from tests.gateway.fleet.fleet import EngineStream, deployment
from tests.gateway.uplink.child import PARENT, Child, UpStream

ANY = replace(deployment("m", 2, routes=("any", "chat")), upgrades=True)
OFFERED = ("sec-websocket-protocol", "realtime, beta")


def _child(*serving: DeploymentState) -> Child:
    child = Child()
    child.agents = [child.fleet.connect(f"a{n}", each) for n, each in enumerate(serving)]
    return child


def _ask(child: Child, path: str = "/v1/realtime?model=m") -> UpStream:
    """OPEN as a parent sends it for a WebSocket: nothing of its body follows before there is one."""
    group = child.capacity.state().deployments[0].id
    head = RequestHead(group, "GET", path, (OFFERED,), "m", "r1", streaming=True, upgrade=True, via=(PARENT,))
    stream = UpStream(head)
    child.runner.open(child, stream)  # type: ignore[arg-type]
    child.fleet.settle()
    return stream


async def _opened(child: Child) -> tuple[UpStream, EngineStream]:
    stream = _ask(child)
    (engine,) = child.agents[0].open_streams
    engine.stream.send_head(ResponseHead(UPGRADED, (("sec-websocket-protocol", "realtime"),)))
    await child.settle()
    return stream, engine


def test_websockets_are_offered_where_all_of_a_group_take_them() -> None:
    (group,) = _child(ANY, ANY).capacity.state().deployments
    assert (group.upgrades, group.lacks) == (True, ())
    (group,) = _child(ANY, replace(ANY, upgrades=False)).capacity.state().deployments
    assert (group.upgrades, UPGRADE_NEED in group.lacks) == (False, False)


async def test_messages_pass_both_ways_piece_by_piece_and_both_ends_close_as_they_said() -> None:
    child = _child(ANY)
    stream, engine = await _opened(child)
    assert (engine.head.upgrade, engine.head.path) == (True, "/v1/realtime?model=m")
    assert OFFERED in engine.head.headers
    assert (stream.heads[0].status, stream.heads[0].ran_by) == (UPGRADED, "a0")
    assert stream.heads[0].headers == (("sec-websocket-protocol", "realtime"),)
    said = b"".join(pieces(PieceKind.TEXT, b"x" * 40_000, final=True))
    for start in range(0, len(said), 9_999):  # DATA may cut a body anywhere
        stream.handler.on_data(said[start : start + 9_999])
    await child.settle()
    assert engine.body == said
    assert stream.consumed_bytes == len(said), "the client may send as much again"
    engine.stream.send_data(said)
    await child.settle()
    reader = PieceReader()
    read = reader.feed(stream.data)
    assert b"".join(each.data for each in read) == b"x" * 40_000
    assert [(each.kind, each.final) for each in read] == [(1, False), (0, False), (0, True)]
    stream.handler.on_data(encode_close(4321, "enough"))
    stream.handler.on_end(None)
    await child.settle()
    assert engine.body.endswith(encode_close(4321, "enough"))
    assert engine.body_ended
    engine.stream.send_data(encode_close(4007, "so be it"))
    engine.stream.end(Trailers())
    await child.settle()
    assert reader.feed(stream.data[len(said) :]) == list[MessagePiece]()
    assert reader.closed == CloseNotice(4007, "so be it")
    assert stream.ended
    assert (child.runner.running, child.capacity.running) == (0, 0)
    assert child.audited[0].status == UPGRADED
    child.fleet.assert_quiet()


async def test_the_engine_may_close_first_and_what_the_client_still_says_is_dropped() -> None:
    child = _child(ANY)
    stream, engine = await _opened(child)
    engine.stream.send_data(encode_close(1000, ""))
    engine.stream.end(Trailers())
    await child.settle()
    assert stream.ended
    late = pieces(PieceKind.BINARY, b"late", final=True)[0]
    stream.handler.on_data(late)
    assert stream.consumed_bytes == len(late)
    assert engine.body == b""
    child.fleet.assert_quiet()


async def test_a_client_that_vanishes_ends_the_engines_websocket() -> None:
    child = _child(ANY)
    stream, engine = await _opened(child)
    stream.handler.on_reset(ErrorCode.CANCELLED, "")
    await child.settle()
    assert engine.reset_code is ErrorCode.CANCELLED
    assert stream.reset_with == (ErrorCode.CANCELLED, "")
    engine.confirm()
    await child.settle()
    assert child.runner.outcomes["cancelled"] == 1
    child.fleet.assert_quiet()


async def test_an_engine_that_is_lost_is_told_to_the_parent_and_is_not_replaced() -> None:
    child = _child(ANY, ANY)
    stream = _ask(child)
    first, second = sorted(child.agents, key=lambda agent: not agent.open_streams)
    (engine,) = first.open_streams
    engine.stream.send_head(ResponseHead(UPGRADED, ()))
    await child.settle()
    engine.stream.reset(ErrorCode.ENGINE_FAILED, "it died")
    await child.settle()
    assert stream.reset_with is not None
    assert stream.reset_with[0] is ErrorCode.ENGINE_FAILED
    assert second.streams == []
    child.fleet.assert_quiet()


async def test_an_agent_that_refuses_has_seen_nothing_and_another_one_is_asked() -> None:
    child = _child(ANY, ANY)
    stream = _ask(child)
    first, second = sorted(child.agents, key=lambda agent: not agent.open_streams)
    first.open_streams[0].stream.reset(ErrorCode.REFUSED)
    await child.settle()
    (engine,) = second.open_streams
    engine.stream.send_head(ResponseHead(UPGRADED, ()))
    stream.handler.on_data(pieces(PieceKind.TEXT, b"hi", final=True)[0])
    await child.settle()
    assert engine.body == pieces(PieceKind.TEXT, b"hi", final=True)[0]
    stream.handler.on_closed()
    await child.settle()
    engine.confirm()
    await child.settle()
    child.fleet.assert_quiet()


async def test_an_engine_that_opens_none_answers_as_to_any_request() -> None:
    child = _child(ANY)
    stream = _ask(child)
    (engine,) = child.agents[0].open_streams
    engine.stream.send_head(ResponseHead(403, ()))
    engine.stream.send_data(b"not here")
    await child.settle()
    stream.handler.on_end(None)  # as a parent does that has heard this
    engine.stream.end(Trailers())
    await child.settle()
    assert (stream.heads[0].status, stream.data, stream.ended) == (403, b"not here", True)
    assert engine.body == b""
    child.fleet.assert_quiet()


async def test_a_group_whose_agents_take_none_any_more_says_so() -> None:
    child = _child(replace(ANY, upgrades=False))
    stream = _ask(child)
    await child.settle()
    assert stream.heads[0].status == RouteNotSupported.status
    assert b"opens WebSockets" in stream.data
    assert child.capacity.running == 0
