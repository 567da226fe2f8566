"""What the doctor says of engines that it asks."""

from typing import Any

import pytest

from agent.diagnosis.engine_probe import HEALTH, EngineProbe
from agent.engines.speaking import BACKENDS
from shared.process.checks import CheckOutcome, CheckState
from tests.support.stand_in_gateway import StandIn, stand_in


def looked_at(answers: dict[str, Any], protocol: str = "openai", **more: Any) -> CheckOutcome:
    with stand_in(StandIn(answers)) as there:
        return EngineProbe("e", f"http://127.0.0.1:{there.port}", protocol, **more).reachable()


def test_every_protocol_that_an_engine_may_have_can_be_asked() -> None:
    assert {*HEALTH, "tensorflow"} == BACKENDS.keys()


@pytest.mark.parametrize(("said", "state"), [("AVAILABLE", CheckState.OK), ("LOADING", CheckState.FAILED)])
def test_tensorflow_serving_is_asked_for_the_state_of_its_model(said: str, state: CheckState) -> None:
    answers = {"/v1/models/a%20b": {"model_version_status": [{"state": said}]}}
    assert looked_at(answers, "tensorflow", models=("a b",)).state is state


def test_a_model_that_tensorflow_serving_does_not_have_is_told() -> None:
    found = looked_at({}, "tensorflow", models=("m",))
    assert found.state is CheckState.FAILED
    assert "m" in found.words
    assert "does not serve it" in found.words


def test_each_model_of_tensorflow_serving_is_looked_at() -> None:
    answers = {"/v1/models/first": {"model_version_status": [{"state": "AVAILABLE"}]}}
    found = looked_at(answers, "tensorflow", models=("first", "second"))
    assert found.state is CheckState.FAILED
    assert "second" in found.words


def test_torchserve_is_asked_whether_it_is_well() -> None:
    assert looked_at({"/ping": {"status": "Healthy"}}, "torchserve").state is CheckState.OK
    assert looked_at({"/ping": 500}, "torchserve").state is CheckState.FAILED


@pytest.mark.parametrize("data", [5, True, {"a": 1}, "text", None])
def test_a_list_of_models_that_is_none_has_no_models(data: Any) -> None:
    found = looked_at({"/v1/models": {"data": data}})
    assert "lists no models" in found.words


@pytest.mark.parametrize("url", [f"http://{'a' * 70}:1", "http://a..b:1", "http://a b:1"])
def test_a_host_that_can_have_no_address_is_told_as_such(url: str) -> None:
    found = EngineProbe("e", url).reachable()
    assert found.state is CheckState.FAILED
    assert "does not answer" in found.words


def test_paths_and_keys_beyond_ascii_are_sent_as_the_agent_sends_them() -> None:
    answers = {"/caf%C3%A9%20x/v1/models": {"data": [{"id": "m"}]}}
    with stand_in(StandIn(answers)) as there:
        url = f"http://127.0.0.1:{there.port}/caf\xe9 x"
        assert EngineProbe("e", url, key="\u20ac").reachable().state is CheckState.OK


def test_an_engine_without_routes_for_text_is_not_told_to_hang() -> None:
    with stand_in(StandIn({"/v1/models": {"data": [{"id": "whisper"}]}})) as there:
        found = EngineProbe("e", f"http://127.0.0.1:{there.port}").generates()
    assert found.state is CheckState.SKIPPED
    assert "no route for text" in found.words


def test_an_engine_that_refuses_its_own_model_is_told() -> None:
    answers: dict[str, Any] = {"/v1/models": {"data": [{"id": "m"}]}, "/v1/chat/completions": 400}
    with stand_in(StandIn(answers)) as there:
        found = EngineProbe("e", f"http://127.0.0.1:{there.port}").generates()
    assert found.state is CheckState.FAILED
