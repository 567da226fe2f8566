"""Requests that were let in by their heads, and whose bodies come when much has changed."""

from dataclasses import replace

import pytest

from gateway.domain.errors import RateLimited
from gateway.domain.quotas import Rates
from shared.protocol.messages import Usage
from tests.gateway.quota.support import CHAT, Stage
from tests.gateway.quota.test_limits import ask


async def test_who_sends_its_body_late_has_no_second_limit_of_its_own() -> None:
    stage = Stage(Rates(rpm=1))
    stage.answer(Usage(1, 1))
    late = stage.limits.guard(stage.keys.principal)
    assert late is not None
    stage.limits._most_keys = 1
    stage.limits.guard(replace(stage.keys.principal, key_id="k2"))
    assert stage.keys.principal.key_id not in stage.limits._keys, "forgotten: nothing of it counted"
    assert (await stage.surface.post(CHAT, ask())).status == 200
    with pytest.raises(RateLimited):
        late.reserve(stage.dispatcher.request)


async def test_who_sends_its_body_late_brings_no_limit_back_that_was_changed_meanwhile() -> None:
    stage = Stage(Rates(tpm=1000))
    stage.answer(Usage(1, 1))
    await stage.surface.post(CHAT, ask())
    before, late = stage.dispatcher.request, stage.limits.guard(stage.keys.principal)
    stage.keys.principal = replace(stage.keys.principal, rates=Rates(rpm=1))
    assert late is not None
    assert [(await stage.surface.post(CHAT, ask())).status for _ in range(2)] == [200, 429]
    with pytest.raises(RateLimited):
        late.reserve(before)
    assert (await stage.surface.post(CHAT, ask())).status == 429
