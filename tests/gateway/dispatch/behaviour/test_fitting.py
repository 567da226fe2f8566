"""Requests go only where their context fits."""

from typing import Any

import pytest

from gateway.dispatch.placement import PlacementSettings
from gateway.domain.errors import ContextTooLong
from tests.gateway.fleet.fleet import Fleet
from tests.gateway.scheduling.placement.loadable import (
    LOADED,
    LoadingAgent,
    finish,
    fleet_of,
    loadable,
)


def kv(model: str = "m", tokens: int | None = 4000, use: float | None = None, **more: Any) -> Any:
    return loadable(model, status=LOADED, slots=8, kv_tokens=tokens, kv_use=use, **more)


def test_requests_go_only_where_their_context_fits() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, kv())
    for _ in range(3):
        fleet.submit(fleet.request(input_tokens=1500, output_tokens=200))
    assert agent.streams == 2
    fleet.submit(fleet.request(input_tokens=100, output_tokens=100))
    assert agent.streams == 3, "a small one does not wait behind it"
    finish(agent)
    assert agent.streams == 3


def test_what_the_engine_says_it_uses_counts() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, kv(use=0.9, running=1))
    fleet.submit(fleet.request(input_tokens=1500, output_tokens=200))
    assert agent.streams == 0, "somebody else uses it"
    agent.become("m", LOADED, kv_use=0.1)
    assert agent.streams == 1


def test_a_context_that_is_only_estimated_to_be_too_large_goes_to_an_idle_engine() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, kv(use=0.02), loadable("n", None, status=LOADED, kv_tokens=100))
    fleet.submit(fleet.request(input_tokens=3900, output_tokens=800))
    assert agent.streams == 1
    fleet.submit(fleet.request("n", input_tokens=10, output_tokens=256))
    assert agent.streams == 2


def test_an_engine_that_runs_nothing_has_all_its_room_whatever_it_says() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, kv(use=0.9))
    fleet.submit(fleet.request(input_tokens=1500, output_tokens=200))
    assert agent.streams == 1


@pytest.mark.parametrize("policy", ["least-outstanding", "cost", "round-robin"])
def test_large_contexts_are_not_starved_by_small_ones(policy: str) -> None:
    fleet = Fleet(policy=policy, placement=PlacementSettings())
    agent = LoadingAgent(fleet, kv())
    for _ in range(3):
        fleet.submit(fleet.request(input_tokens=900, output_tokens=100))
    large = fleet.request(input_tokens=3000, output_tokens=100)
    fleet.submit(large)
    for _ in range(12):
        fleet.submit(fleet.request(input_tokens=900, output_tokens=100))
        fleet.advance(1.0)
        finish(agent)
        if large.attempts:
            return
    raise AssertionError("it was never given to anybody")


def test_a_prompt_that_surely_fits_nowhere_is_refused_with_the_numbers() -> None:
    fleet = fleet_of()
    routes = ("chat", "embeddings")
    agent = LoadingAgent(fleet, kv(context_tokens=2000, routes=routes), loadable("n", None, kv_tokens=None))
    error = fleet.submit(fleet.request(prompt_bytes=40_000, input_tokens=10_000)).error
    assert isinstance(error, ContextTooLong)
    assert error.code == "context_length_exceeded"
    assert "2000 tokens" in error.message
    assert "5000 tokens at least" in error.message
    for fine in (
        fleet.request(prompt_bytes=12_000, input_tokens=3000),
        fleet.request("n", prompt_bytes=40_000, input_tokens=10_000),
        fleet.request(route="embeddings", prompt_bytes=40_000),
    ):
        assert not fleet.submit(fine).settled
    agent.become("m", LOADED, context_tokens=None, kv_tokens=64_000)
    assert not fleet.submit(fleet.request(prompt_bytes=40_000)).settled


def test_bytes_of_pictures_say_nothing_of_tokens() -> None:
    fleet = fleet_of()
    LoadingAgent(fleet, kv())
    request = fleet.request(prompt_bytes=400_000, input_tokens=100_000)
    request.body.prefix = b'{"messages": [{"content": [{"type": "image_url"}]}]}'
    assert not fleet.submit(request).settled


@pytest.mark.parametrize("policy", ["least-outstanding", "cost", "round-robin", "random", "prefix"])
def test_every_policy_honours_what_fits(policy: str) -> None:
    fleet = Fleet(policy=policy, placement=PlacementSettings())
    agent = LoadingAgent(fleet, kv())
    for _ in range(4):
        fleet.submit(fleet.request(input_tokens=1500, output_tokens=200))
    fleet.advance(3.0)
    assert agent.streams == 2
