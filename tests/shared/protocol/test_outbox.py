"""The order in which a session's frames leave, and what they leave with."""

import pytest

from shared.protocol import limits
from shared.protocol.errors import LocalError
from shared.protocol.events import (
    ControlReceived,
)
from shared.protocol.frames import FrameType
from shared.protocol.messages import AgentState, AgentStatus
from tests.support.session_pair import OK, SessionPair, frames_of, request_head


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


def test_an_agent_may_speak_of_requests_that_have_left_and_of_no_others(pair: SessionPair) -> None:
    first, second, third = (pair.gateway.open_stream(request_head(), pair.now) for _ in range(3))
    assert frames_of(pair.send(pair.gateway, 1)) == [("OPEN", first)]
    outbox = pair.gateway._outbox
    assert outbox.last_opened == first
    assert frames_of(pair.send(pair.gateway)) == [("OPEN", second), ("OPEN", third)]
    assert outbox.last_opened == third


def test_commands_that_have_left_make_room_for_others(pair: SessionPair) -> None:
    for _ in range(2):
        for number in range(limits.COMMANDS):
            pair.gateway.send_command({"id": number})
        with pytest.raises(LocalError):
            pair.gateway.send_command({})
        assert len(frames_of(pair.send(pair.gateway))) == limits.COMMANDS
