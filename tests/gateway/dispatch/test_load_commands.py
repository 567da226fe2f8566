"""What becomes of commands to load and to unload, whatever agents do (PROTOCOL §4.8)."""

import pytest

from gateway.domain.errors import NoDeployment
from shared.protocol.errors import ErrorCode
from tests.gateway.fleet.tunnels import resume, suspend
from tests.gateway.scheduling.placement.loadable import (
    FAILED,
    LOAD,
    LOADED,
    UNLOAD,
    LoadingAgent,
    finish,
    fleet_of,
    loadable,
    sample,
)


def test_a_failed_load_is_tried_again_and_then_refused_with_the_time_to_come_back() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m"))
    client = fleet.submit()
    agent.become("m", FAILED, reason="no such file")
    assert not client.settled
    fleet.advance(5.5)
    assert agent.commands == [(LOAD, "m")] * 2
    agent.become("m", FAILED, reason="no such file")
    fleet.advance(0.2)
    error = client.error
    assert isinstance(error, NoDeployment)
    assert error.code == "model_not_loadable"
    assert "no such file" not in error.message, "that is for the operator"
    assert error.retry_after_s == pytest.approx(10.0, abs=0.5)
    assert isinstance(fleet.submit().error, NoDeployment)
    fleet.advance(10.0)
    again = fleet.submit()
    agent.loaded("m")
    finish(agent)
    assert again.response.status == 200
    assert sample(fleet, "trunkline_model_loads_total", model="m", outcome="failed") == 2
    assert sample(fleet, "trunkline_model_loads_total", model="m", outcome="loaded") == 1


def test_a_failed_load_goes_on_at_another_agent() -> None:
    fleet = fleet_of()
    first = LoadingAgent(fleet, loadable("m", load_s=1.0), name="a")
    second = LoadingAgent(fleet, loadable("m"), name="b")
    fleet.submit()
    first.become("m", FAILED, reason="out of memory")
    fleet.advance(0.5)
    assert second.commands == [(LOAD, "m")]


def test_a_command_that_is_never_answered_has_failed() -> None:
    fleet = fleet_of()
    first = LoadingAgent(fleet, loadable("m", load_s=1.0), name="a")
    second = LoadingAgent(fleet, loadable("m"), name="b")
    first.mute = True
    fleet.submit()
    fleet.advance(9.0)
    assert (first.commands, second.commands) == ([(LOAD, "m")], [])
    fleet.advance(2.0)
    assert second.commands == [(LOAD, "m")]


def test_a_load_that_takes_too_long_is_given_up() -> None:
    fleet = fleet_of(load_timeout_s=30.0)
    agent = LoadingAgent(fleet, loadable("m"))
    fleet.submit()
    fleet.advance(31.0)
    assert agent.commands == [(LOAD, "m"), (UNLOAD, "m")]
    agent.unloaded("m")
    fleet.advance(6.0)
    assert agent.commands[2:] == [(LOAD, "m")]


def test_an_agent_that_refuses_for_want_of_memory_has_something_unloaded() -> None:
    fleet = fleet_of(min_residence_s=0.0)
    agent = LoadingAgent(fleet, loadable("m", None), loadable("n", None, status=LOADED), memory=None)
    agent.refuses = "it does not fit"
    fleet.submit()
    assert agent.commands == [(LOAD, "m")]
    agent.refuses = None
    fleet.advance(0.5)
    assert agent.commands == [(LOAD, "m"), (UNLOAD, "n")]


def test_an_agent_that_will_not_unload_is_asked_again_later_and_serves_on() -> None:
    fleet = fleet_of(min_residence_s=0.0)
    agent = LoadingAgent(fleet, loadable("m"), loadable("n", status=LOADED))
    agent.refuses = "requests run there"
    fleet.submit()
    fleet.advance(2.0)
    assert agent.commands == [(UNLOAD, "n")]
    fleet.submit(fleet.request("n"))
    assert agent.streams == 1
    finish(agent)
    agent.refuses = None
    fleet.advance(6.0)
    assert agent.commands == [(UNLOAD, "n"), (UNLOAD, "n")]


def test_an_answer_nobody_waits_for_or_nobody_can_read_changes_nothing() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m"))
    agent.agent.endpoint.send_command({"id": 7, "ok": False})
    agent.agent.endpoint.send_command({"id": "x"})
    fleet.submit()
    assert agent.commands == [(LOAD, "m")]


def test_an_agent_that_goes_while_it_loads_leaves_the_request_to_others() -> None:
    fleet = fleet_of()
    first = LoadingAgent(fleet, loadable("m", load_s=1.0), name="a")
    second = LoadingAgent(fleet, loadable("m"), name="b")
    fleet.submit()
    assert first.commands
    fleet.session(first.agent).close(ErrorCode.DRAINING, "bye")
    fleet.advance(0.5)
    assert second.commands == [(LOAD, "m")]


def test_an_agent_that_comes_anew_is_tried_at_once_unless_it_was_lost_over_a_load() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m"))
    fleet.submit()
    for _ in range(2):
        agent.become("m", FAILED, reason="no such file")
        fleet.advance(5.5)
    assert isinstance(fleet.submit().error, NoDeployment)
    fleet.session(agent.agent).close(ErrorCode.DRAINING, "bye")
    agent = LoadingAgent(fleet, loadable("m"))
    fleet.submit()
    fleet.advance(0.2)
    assert agent.commands == [(LOAD, "m")]
    for _ in range(2):
        fleet.session(agent.agent).close(ErrorCode.DRAINING, "dead")
        fleet.advance(1.0)
        agent = LoadingAgent(fleet, loadable("m"))
        fleet.advance(2.0)
        assert agent.commands == []
        fleet.advance(10.0)
        fleet.submit()
        assert agent.commands == [(LOAD, "m")]


def test_a_suspended_agent_is_told_nothing() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m"))
    suspend(fleet, agent.agent)
    fleet.submit()
    assert agent.commands == []
    resume(fleet, agent.agent)
    fleet.advance(0.5)
    assert agent.commands == [(LOAD, "m")]
    other = LoadingAgent(fleet, loadable("n", load_s=1.0), name="b")
    agent = LoadingAgent(fleet, loadable("n"), name="c")
    suspend(fleet, other.agent)
    fleet.submit(fleet.request("n"))
    fleet.advance(0.5)
    assert agent.commands == [(LOAD, "n")]
