"""The counterpart of ``trunkline doctor`` at a gateway."""

import asyncio

import pytest

from gateway.api.admin.diagnosis import MOST_PROBES
from gateway.domain.scopes import AdminRole
from tests.gateway.api.admin.house import NOW_S, House
from tests.gateway.api.calls import Call
from tests.gateway.api.support import MIB


def _call(house: House, method: str, path: str, query: bytes = b"") -> Call:
    bearer = (b"authorization", b"Bearer " + house.keys[AdminRole.VIEWER].encode())
    return Call(house.app, method, path, (bearer,), query=query)


async def _until_running(house: House, count: int) -> None:
    async with asyncio.timeout(60):
        while house.doctor.running < count:  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0)


async def test_it_says_the_time_its_limits_and_where_the_request_came_from(house: House) -> None:
    status, found, _ = await house.ask("GET", "/admin/diagnosis", AdminRole.VIEWER)
    assert status == 200
    assert (found["version"], found["at"], found["body_bytes"], found["comment_s"]) == (
        "1.2.3",
        NOW_S,
        2 * MIB,
        15.0,
    )
    assert found["forwarded"] is False


async def test_events_are_numbered_and_no_proxy_may_hold_them_back(house: House) -> None:
    call = _call(house, "GET", "/admin/diagnosis/events", b"count=3&gap_s=0")
    call.body(b"")
    await call.done(5)
    assert call.headers["x-accel-buffering"] == "no"
    assert call.headers["content-type"].startswith("text/event-stream")
    assert [part for part in call.content.split(b"\n\n") if part] == [
        b'event: probe\ndata: {"number":%d,"at":1000.0}' % number for number in range(3)
    ]


async def test_a_body_is_counted_and_not_kept(house: House) -> None:
    call = _call(house, "POST", "/admin/diagnosis/body")
    call.body(bytes(MIB))
    await call.done(5)
    assert (call.status, call.content) == (200, b'{"received_bytes":1048576}')


async def test_a_body_longer_than_any_may_be_is_refused(house: House) -> None:
    call = _call(house, "POST", "/admin/diagnosis/body")
    call.body(bytes(3 * MIB))
    await call.done(5)
    assert call.status == 413


@pytest.mark.parametrize("query", [b"s=-1", b"s=nan", b"s=x", b"s=1e9"])
async def test_what_is_no_time_is_refused(house: House, query: bytes) -> None:
    status, found, _ = await house.ask("GET", "/admin/diagnosis/silence", AdminRole.VIEWER, query=query)
    assert (status, found["error"]["param"]) == (400, "s")


async def test_silence_ends_with_an_answer(house: House) -> None:
    status, found, _ = await house.ask("GET", "/admin/diagnosis/silence", AdminRole.VIEWER, query=b"s=0.01")
    assert (status, found) == (200, {"silent_s": 0.01})


async def test_so_many_probes_run_at_once_and_no_more(house: House) -> None:
    calls = [_call(house, "GET", "/admin/diagnosis/silence", b"s=60") for _ in range(MOST_PROBES)]
    for call in calls:
        call.body(b"")
    waiting = [asyncio.ensure_future(call.done(30)) for call in calls]
    await _until_running(house, MOST_PROBES)
    status, found, _ = await house.ask("GET", "/admin/diagnosis/silence", AdminRole.VIEWER, query=b"s=0")
    assert (status, found["error"]["code"]) == (503, "overloaded")
    for call in calls:
        call.disconnect()
    await asyncio.gather(*waiting)  # a minute before their silence would end
    assert house.doctor.running == 0
