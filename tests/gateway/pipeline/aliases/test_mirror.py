"""Copies for a shadow: a share, a few at once, and never anything that a real request could notice."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.dispatch.stream_recovery import StreamRecovery
from gateway.domain.aliases import AliasMirror, AliasTarget
from gateway.domain.errors import QueueFull
from gateway.domain.request import Request, RequestBody, Tier
from gateway.pipeline.aliases.mirror import MOST_BODY_BYTES, MOST_OPEN, PATIENCE_S, Mirrors
from gateway.pipeline.relay import Response
from shared.protocol.messages import ResponseHead
from tests.gateway.api.support import EVENTS, FakeResponse, json_response
from tests.gateway.pipeline.aliases.support import Desk, served

ALL = AliasMirror(AliasTarget("shadow", "v2"), 1.0)
LABELS = {"alias": "prod", "target": "shadow@v2"}


class Stage:
    """Mirrors before engines that answer ``response``, after ``gate`` opens."""

    def __init__(self, response: FakeResponse | None = None) -> None:
        self.desk = Desk()
        self.desk.serve(served("shadow", "v1"), served("shadow", "v2", slots=64))
        self.response = response or json_response()
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.copies: list[Request] = []
        self.mirrors = Mirrors(
            self.run, self.desk.fleet.registry.index, self.desk.figures, self.desk.fleet.loop
        )

    async def run(self, request: Request) -> Response:
        self.copies.append(request)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.response

    def request(self) -> Request:
        request = self.desk.request("prod", alias="prod", tier=Tier.REALTIME, deadline_s=9.0, session_key="s")
        request.model = "m"
        request.body = RequestBody(b'{"model":"m"}', None, 13)
        return request

    def offer(self, mirror: AliasMirror = ALL, request: Request | None = None, key: str = "k") -> Request:
        request = request or self.request()
        self.mirrors.offer(mirror, request, key)
        return request

    async def settle(self) -> None:
        for _ in range(100):
            if self.mirrors.copies:
                await asyncio.sleep(0)
        assert not self.mirrors.copies

    def count(self, outcome: str) -> float:
        return self.desk.count("trunkline_mirrored_requests_total", outcome=outcome, **LABELS)


async def test_a_copy_is_a_batch_request_of_nobodys_for_the_shadow() -> None:
    stage = Stage()
    real = stage.offer()
    assert not stage.copies  # the real one goes first
    await stage.settle()
    (copy,) = stage.copies
    assert (copy.model, copy.version, copy.tier, copy.deadline_s) == ("shadow", "v2", Tier.BATCH, None)
    assert copy.body.prefix == b'{"model":"shadow"}'
    assert dict(copy.headers)["content-length"] == str(len(copy.body.prefix))
    assert copy.principal.tenant not in ("tenant", "")
    assert copy.principal.where == real.principal.where
    assert (copy.shadow, copy.session_key) == (True, "s")
    assert (real.model, real.body.prefix, real.tier, real.attempts) == (
        "m",
        b'{"model":"m"}',
        Tier.REALTIME,
        [],
    )
    assert stage.response.aborted
    assert stage.response.consumed_bytes == len(b'{"ok":true}')
    assert stage.count("2xx") == 1
    assert stage.desk.count("trunkline_mirrored_request_seconds_count", **LABELS) == 1


async def test_a_copy_is_not_gone_on_with_elsewhere_and_takes_no_memory_for_that() -> None:
    stage = Stage()
    stage.offer()
    await stage.settle()
    (copy,) = stage.copies
    real = stage.request()
    head = ResponseHead(200, EVENTS)
    for request in (copy, real):
        request.streaming = True
    assert StreamRecovery.recordable(real, head)
    assert not StreamRecovery.recordable(copy, head)


async def test_about_the_share_is_copied_and_a_session_whole_or_not_at_all() -> None:
    stage = Stage()
    mirror = AliasMirror(ALL.target, 0.25)
    for number in range(200):
        before = len(stage.copies)
        stage.offer(mirror, key=f"s{number}")
        stage.offer(mirror, key=f"s{number}")
        await stage.settle()
        assert len(stage.copies) - before in (0, 2)
    assert 50 <= len(stage.copies) <= 150


async def test_no_more_than_a_few_are_open_and_the_rest_is_skipped() -> None:
    stage = Stage()
    stage.gate.clear()
    for _ in range(MOST_OPEN + 3):
        stage.offer()
    await asyncio.sleep(0)
    assert len(stage.copies) == len(stage.mirrors.copies) == MOST_OPEN
    assert stage.count("skipped_full") == 3
    stage.gate.set()
    await stage.settle()
    stage.offer()
    await stage.settle()
    assert stage.count("2xx") == MOST_OPEN + 1


async def test_a_shadow_without_a_free_slot_is_left_alone() -> None:
    stage = Stage()
    stage.offer(AliasMirror(AliasTarget("shadow", "v9"), 1.0))
    stage.offer(AliasMirror(AliasTarget("unheard-of"), 1.0))
    await stage.settle()
    assert not stage.copies
    labels = {"alias": "prod", "target": "shadow@v9", "outcome": "skipped_busy"}
    assert stage.desk.count("trunkline_mirrored_requests_total", **labels) == 1


async def test_bodies_that_are_long_or_still_coming_are_not_copied() -> None:
    stage = Stage()
    long, coming = stage.request(), stage.request()
    long.body = RequestBody(b"x" * (MOST_BODY_BYTES + 1))

    async def rest() -> AsyncIterator[bytes]:
        raise AssertionError("nobody may read it")
        yield b""

    coming.body = RequestBody(b"x", rest(), 10)
    stage.offer(request=long)
    stage.offer(request=coming)
    await stage.settle()
    assert (len(stage.copies), stage.count("skipped_body")) == (0, 2)


@pytest.mark.parametrize("error", [QueueFull("full"), RuntimeError("a fault of ours")])
async def test_whatever_becomes_of_a_copy_is_counted_and_nothing_else(error: Exception) -> None:
    stage = Stage()
    stage.error = error
    stage.offer()
    await stage.settle()
    assert stage.count("failed") == 1


async def test_a_shadows_errors_are_told_by_their_status() -> None:
    stage = Stage(json_response(status=503))
    stage.offer()
    await stage.settle()
    assert stage.count("5xx") == 1


async def test_a_copy_whose_slot_was_taken_gives_up_and_one_that_has_a_slot_does_not() -> None:
    stage = Stage()
    stage.gate.clear()
    stage.offer()
    stage.offer()
    await asyncio.sleep(0)
    stage.copies[0].attempts.append("agent/d")
    stage.desk.fleet.loop.advance(PATIENCE_S)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (len(stage.mirrors.copies), stage.count("cancelled")) == (1, 1)
    stage.gate.set()
    await stage.settle()
    assert stage.count("2xx") == 1


async def test_a_gateway_that_stops_gives_up_its_copies_and_makes_no_more() -> None:
    stage = Stage()
    stage.gate.clear()
    stage.offer()
    await asyncio.sleep(0)
    stage.mirrors.stop()
    await stage.settle()
    stage.offer()
    assert (len(stage.copies), len(stage.mirrors.copies), stage.count("cancelled")) == (1, 0, 1)
