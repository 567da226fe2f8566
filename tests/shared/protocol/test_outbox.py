"""The order in which a session's frames leave, and what they leave with."""

from shared.protocol import limits
from shared.protocol.events import (
    ControlReceived,
)
from shared.protocol.frames import FrameType
from shared.protocol.messages import AgentState, AgentStatus
from tests.support.session_pair import OK, SessionPair, frames_of


def test_everything_of_one_turn_leaves_as_one_message(pair: SessionPair) -> None:
    first, second = pair.open(), pair.open()
    for stream_id in (first, second):
        pair.agent.send_head(stream_id, OK)
        pair.agent.send_data(stream_id, b"a")
        pair.agent.send_data(stream_id, b"b")
    messages = pair.send(pair.agent)
    assert len(messages) == 1
    names = frames_of(messages)
    assert names == [("HEAD", first), ("DATA", first), ("HEAD", second), ("DATA", second)]


def test_levels_are_levels_and_only_the_newest_counts(pair: SessionPair) -> None:
    pair.agent.send_slots({"d1": 4})
    pair.agent.send_state(AgentState(AgentStatus.READY))
    pair.agent.send_slots({"d1": 2})
    names = frames_of(pair.send(pair.agent))
    assert names == [("STATE", 0), ("SLOTS", 0)]
    assert pair.deliver(pair.gateway)[-1] == ControlReceived(FrameType.SLOTS, {"d1": 2})


def test_interactive_bytes_overtake_bulk(pair: SessionPair) -> None:
    bulk, tokens = pair.open(streaming=False), pair.open(streaming=True)
    pair.agent.send_head(bulk, OK)
    pair.agent.send_head(tokens, OK)
    pair.settle()
    pair.agent.send_data(bulk, bytes(limits.INTERACTIVE_BYTES))
    pair.settle()
    pair.agent.send_data(bulk, bytes(limits.SEND_BUFFER_BYTES))
    pair.agent.send_data(tokens, b"token")
    assert frames_of(pair.send(pair.agent, 100)) == [("DATA", tokens), ("DATA", bulk)]


def test_streams_of_a_class_take_turns(pair: SessionPair) -> None:
    first, second = pair.open(), pair.open()
    for stream_id in (first, second):
        pair.agent.send_head(stream_id, OK)
        pair.agent.send_data(stream_id, bytes(3 * limits.DATA_PAYLOAD_BYTES))
    names = [name for name in frames_of(pair.send(pair.agent)) if name[0] == "DATA"]
    assert names == [("DATA", first), ("DATA", second)] * 3
