"""``/admin/whatif``: who may, what is asked of the process, and how its answer is told."""

from typing import Any

import orjson
import pytest

from gateway.api.admin.whatif_child import LOCK
from gateway.domain.errors import BadRequest, StateUnavailable
from gateway.domain.scopes import AdminRole
from shared.process.file_lock import FileLock
from tests.gateway.api.admin.house import NOW_S, House
from tests.gateway.api.calls import Call
from tests.gateway.api.support import JSON_TYPE
from tests.gateway.dispatch.decisions.kept import facts

VIEWER = AdminRole.VIEWER
PATH = "/admin/whatif"


async def events(house: House, body: dict[str, Any]) -> tuple[Call, list[bytes]]:
    bearer = (b"authorization", b"Bearer " + house.keys[VIEWER].encode())
    call = Call(house.app, "POST", PATH, (bearer, JSON_TYPE, (b"accept", b"text/event-stream")))
    call.body(orjson.dumps(body))
    await call.done(5)
    return call, [part for part in call.content.split(b"\n\n") if part]


async def test_it_says_what_there_is_to_choose_from(house: House) -> None:
    status, found, _ = await house.ask("GET", PATH, VIEWER)
    (model,) = found["models"]
    assert status == 200
    assert (model["model"], model["slots"], model["devices"], model["policy"]) == ("m", 4, {"l4": 1}, "cost")
    assert "l4" in [each["device"] for each in found["devices"]]
    assert "least-outstanding" in found["policies"]
    assert found["source"] == "decision records"


async def test_who_has_no_role_may_not_and_a_viewer_may(house: House) -> None:
    assert (await house.ask("POST", PATH, None, {}))[0] == 403
    status, found, _ = await house.ask("POST", PATH, VIEWER, {"policy": "cost", "minutes": 5})
    assert (status, found) == (200, {"requests": 2})
    (task,) = house.runner.tasks
    assert (task.wanted, task.body, task.until_s, task.most) == (
        "run",
        {"policy": "cost", "minutes": 5},
        NOW_S,
        100,
    )


async def test_decision_records_are_told_where_the_audit_log_has_no_requests(house: House) -> None:
    house.records.add(facts(7), "its-name", 1, 1, None)
    await house.ask("POST", PATH, VIEWER, {})
    (record,) = house.runner.tasks[0].records
    assert (record["model"], record["at"], "its-name" in str(record)) == (
        "m",
        "1970-01-01T00:16:47.000Z",
        False,
    )


async def test_progress_and_result_are_events(house: House) -> None:
    call, parts = await events(house, {})
    assert call.headers["content-type"].startswith("text/event-stream")
    assert parts == [b'event: progress\ndata: {"done":1,"of":2}', b'event: result\ndata: {"requests":2}']


async def test_what_is_wrong_before_the_first_event_is_a_refusal_and_later_an_event(house: House) -> None:
    refused = BadRequest("There is no such model.", param="add", code="invalid_value")
    house.runner.lines[:] = [refused]
    call, _ = await events(house, {})
    assert (call.status, orjson.loads(call.content)["error"]["param"]) == (400, "add")
    house.runner.lines[:] = [{"progress": {"done": 0, "of": 2}}, StateUnavailable("It took too long.")]
    _, parts = await events(house, {})
    assert parts[1].startswith(b'event: failed\ndata: {"error":{"message":"It took too long."')


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"scale": 0}, "scale"),
        ({"add": [{"device": "l4", "count": 0}]}, "add.0.count"),
        ({"add": [{"device": "l4", "colour": "red"}]}, "add.0.colour"),
        ({"minutes": 1e9}, "minutes"),
        ({"add": [{}] * 33}, "add"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
async def test_a_bad_body_names_what_is_wrong(house: House, body: dict[str, Any], param: str) -> None:
    status, found, _ = await house.ask("POST", PATH, VIEWER, body)
    assert (status, found["error"]["code"], found["error"]["param"]) == (400, "invalid_value", param)
    assert house.runner.tasks == []


async def test_one_runs_at_a_time_on_a_host(house: House) -> None:
    lock = FileLock(house.runner.state_dir / LOCK)
    assert lock.try_take(exclusive=True)
    status, found, _ = await house.ask("POST", PATH, VIEWER, {})
    assert (status, found["error"]["code"]) == (409, "whatif_runs")
    lock.close()
    assert (await house.ask("POST", PATH, VIEWER, {}))[0] == 200


async def test_facts_are_exported_for_the_minutes_that_are_asked_for(house: House) -> None:
    status, found, _ = await house.ask("GET", f"{PATH}/facts", VIEWER, query=b"minutes=5")
    assert (status, found) == (200, {"requests": 2})
    assert (house.runner.tasks[0].wanted, house.runner.tasks[0].body) == ("facts", {"minutes": 5.0})
    for bad in (b"0", b"x", b"nan", b"2000"):
        status, found, _ = await house.ask("GET", f"{PATH}/facts", VIEWER, query=b"minutes=" + bad)
        assert (status, found["error"]["param"]) == (400, "minutes")
