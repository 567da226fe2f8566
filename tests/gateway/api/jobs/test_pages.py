"""``/v1/jobs`` from submission to result, for one tenant and not for another."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.api.jobs import submission
from gateway.api.jobs.pages import JobAccess
from gateway.domain.jobs import JobOutcome, JobState
from gateway.domain.request import Principal
from gateway.domain.scopes import limited
from gateway.storage import Store
from gateway.storage.errors import ObjectStorageFull
from gateway.storage.objects import ObjectStore
from tests.gateway.api.calls import Call
from tests.gateway.api.jobs.access import JobDoer, job_access
from tests.gateway.api.support import BEARER, JSON_TYPE, FakeKeys, Surface, error_in

CHAT = "/v1/chat/completions"
JOB = {"path": CHAT, "body": {"model": "m", "messages": []}}


async def post(surface: Surface, sent: object, *headers: tuple[bytes, bytes], path: str = "/v1/jobs") -> Call:
    return await surface.post(path, orjson.dumps(sent), JSON_TYPE, *headers)


def read(call: Call) -> Any:
    return orjson.loads(call.content)


async def submitted(surface: Surface, number: int = 1) -> list[str]:
    call = await post(surface, {"jobs": [JOB] * number})
    assert call.status == 202, call.content
    return [job["id"] for job in read(call)["data"]]


async def test_a_job_is_taken_and_told_what_becomes_of_it(surface: Surface, doer: JobDoer) -> None:
    call = await post(surface, {**JOB, "custom_id": "a", "metadata": {"x": "y"}})
    made = read(call)
    assert (call.status, call.headers["location"]) == (202, f"/v1/jobs/{made['id']}")
    assert (made["object"], made["status"], made["model"], made["path"]) == ("job", "queued", "m", CHAT)
    assert (made["tier"], made["custom_id"], made["metadata"]) == ("batch", "a", {"x": "y"})
    assert (made["predicted_seconds"], made["predicted_cost"]) == (2.0, 0.5)
    assert 0 <= made["predicted_completion_at"] - made["created_at"] <= 4
    job = doer.claim()
    assert read(await surface.get(f"/v1/jobs/{job.id}"))["status"] == "running"
    await doer.answer(job)
    shown = read(await surface.get(f"/v1/jobs/{job.id}"))
    assert (shown["status"], shown["progress"], shown["predicted_completion_at"]) == ("succeeded", 1.0, None)
    url = f"/v1/jobs/{job.id}/result"
    assert shown["result"] == {"status": 200, "content_type": "application/json", "bytes": 11, "url": url}
    answer = await surface.get(url)
    assert (answer.status, answer.content, answer.headers["x-engine"]) == (200, b'{"ok":true}', "e")
    assert answer.headers["x-trunkline-job"] == job.id


async def test_many_are_taken_together_or_none(
    surface: Surface, access: JobAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MOST_JOBS", 100)
    ids = await submitted(surface, 100)
    assert len(set(ids)) == 100
    call = await post(surface, {"jobs": [JOB] * 101})
    assert (call.status, error_in(call.content)["param"]) == (400, "jobs")
    call = await post(surface, {"jobs": [JOB, {**JOB, "tier": "x"}]})
    assert (call.status, error_in(call.content)["param"]) == (400, "jobs.1.tier")
    call = await post(surface, {"jobs": [JOB] * 51})
    assert (call.status, error_in(call.content)["code"]) == (429, "too_many_jobs")
    assert len(await access.service.list("default", limit=2000)) == 100


async def test_the_same_key_gives_the_same_jobs(surface: Surface) -> None:
    key = (b"idempotency-key", b"once")
    first, again = (
        await post(surface, {"jobs": [JOB, JOB]}, key),
        await post(surface, {"jobs": [JOB, JOB]}, key),
    )
    assert [job["id"] for job in read(first)["data"]] == [job["id"] for job in read(again)["data"]]
    assert (again.status, again.headers["idempotent-replayed"]) == (202, "true")
    assert "idempotent-replayed" not in first.headers
    other = await post(surface, JOB, key)
    assert (other.status, error_in(other.content)["code"]) == (422, "idempotency_key_reused")
    wrong = await post(surface, JOB, (b"idempotency-key", b"a b"))
    assert (wrong.status, error_in(wrong.content)["param"]) == (400, "idempotency-key")


async def test_jobs_are_listed_in_pages(surface: Surface, doer: JobDoer) -> None:
    ids = await submitted(surface, 5)
    page = read(await surface.get("/v1/jobs"))
    assert [job["id"] for job in page["data"]] == ids[::-1]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[4], ids[0], False)
    call = surface.ask("GET", "/v1/jobs", BEARER, query=f"limit=2&order=asc&after={ids[1]}".encode())
    call.body(b"")
    page = read(await call.done())
    assert ([job["id"] for job in page["data"]], page["has_more"]) == (ids[2:4], True)
    running = doer.claim()
    call = surface.ask("GET", "/v1/jobs", BEARER, query=b"status=running,failed")
    call.body(b"")
    assert [job["id"] for job in read(await call.done())["data"]] == [running.id]
    call = surface.ask("GET", "/v1/jobs", BEARER, query=b"group=batch_1")
    call.body(b"")
    assert read(await call.done()) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        (b"limit=0", 400, "limit"),
        (b"limit=101", 400, "limit"),
        (b"limit=x", 400, "limit"),
        (b"limit=" + b"9" * 5000, 400, "limit"),
        (b"order=up", 400, "order"),
        (b"status=lost", 400, "status"),
        (b"after=job-none", 404, None),
    ],
)
async def test_a_list_that_cannot_be_is_refused(
    surface: Surface, query: bytes, status: int, param: str | None
) -> None:
    call = surface.ask("GET", "/v1/jobs", BEARER, query=query)
    call.body(b"")
    await call.done()
    assert (call.status, error_in(call.content)["param"]) == (status, param)


EVERY_PATH = [
    ("GET", ""),
    ("GET", "/result"),
    ("GET", "/events"),
    ("POST", "/cancel"),
    ("POST", "/retry"),
]


@pytest.mark.parametrize(("method", "path"), EVERY_PATH)
async def test_another_tenant_sees_nothing(surface: Surface, method: str, path: str) -> None:
    (job_id,) = await submitted(surface)
    surface.keys.principal = Principal("k2", "other", "other")
    call = await surface.get(f"/v1/jobs/{job_id}{path}", method=method)
    assert (call.status, error_in(call.content)["code"]) == (404, "not_found")
    assert read(await surface.get("/v1/jobs"))["data"] == []


@pytest.mark.parametrize(("method", "path"), EVERY_PATH)
async def test_what_there_is_not_is_not_found(surface: Surface, method: str, path: str) -> None:
    assert (await surface.get(f"/v1/jobs/job-none{path}", method=method)).status == 404
    assert (await surface.get(f"/v1/jobs/job-none{path}", method=method, key=False)).status == 401
    assert (await surface.get(f"/v1/jobs/job-none{path}", method="PUT")).status == 405


async def test_a_scoped_key_sees_its_own_jobs_alone(surface: Surface) -> None:
    (job_id,) = await submitted(surface)
    surface.keys.principal = Principal("k2", "k2", "default", scopes=limited(models=["m"]))
    assert (await surface.get(f"/v1/jobs/{job_id}")).status == 404
    (own,) = await submitted(surface)
    assert [job["id"] for job in read(await surface.get("/v1/jobs"))["data"]] == [own]
    surface.keys.principal = Principal("k3", "k3", "default", scopes=limited(routes=["jobs"]))
    assert len(read(await surface.get("/v1/jobs"))["data"]) == 2


async def test_a_job_is_cancelled_and_a_failed_one_tried_again(surface: Surface, doer: JobDoer) -> None:
    (first, second) = await submitted(surface, 2)
    call = await surface.get(f"/v1/jobs/{first}/cancel", method="POST")
    assert (call.status, read(call)["status"]) == (200, "cancelled")
    again = await surface.get(f"/v1/jobs/{first}/retry", method="POST")
    assert (again.status, error_in(again.content)["code"]) == (409, "job_not_failed")
    job = doer.claim()
    running = read(await surface.get(f"/v1/jobs/{second}/cancel", method="POST"))
    assert (running["status"], running["cancelling"]) == ("running", True)
    doer.end(job, JobOutcome(JobState.FAILED, error={"code": "x", "message": "It broke."}))
    assert read(await surface.get(f"/v1/jobs/{second}"))["error"]["message"] == "It broke."
    queued = read(await surface.get(f"/v1/jobs/{second}/retry", method="POST"))
    assert (queued["status"], queued["error"], queued["attempts"]) == ("queued", None, 0)


@pytest.mark.parametrize(
    ("headers", "status", "param"),
    [
        (((b"content-type", b"text/plain"),), 400, "content-type"),
        ((), 400, "content-type"),
        ((JSON_TYPE, (b"content-encoding", b"gzip")), 415, "content-encoding"),
    ],
)
async def test_only_plain_json_is_taken(
    surface: Surface, headers: tuple[tuple[bytes, bytes], ...], status: int, param: str
) -> None:
    call = await surface.post("/v1/jobs", b"{}", *headers)
    assert (call.status, error_in(call.content)["param"]) == (status, param)


async def test_without_room_nothing_is_taken(surface: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object) -> None:
        raise ObjectStorageFull("full")

    monkeypatch.setattr(ObjectStore, "put_bytes", full)
    call = await post(surface, {"jobs": [JOB, JOB]})
    assert (call.status, error_in(call.content)["code"]) == (507, "storage_full")
    assert read(await surface.get("/v1/jobs"))["data"] == []


async def test_what_a_submission_says_of_its_jobs_is_kept(surface: Surface, access: JobAccess) -> None:
    call = await post(
        surface,
        JOB,
        (b"x-trunkline-where", b"region=eu"),
        (b"x-trunkline-tier", b"standard"),
        (b"x-own", b"1"),
    )
    job = await access.service.get(read(call)["id"], "default")
    assert job.new.headers == (("content-type", "application/json"), ("x-trunkline-where", "region=eu"))
    assert job.new.tier == "standard"


async def test_jobs_behind_others_are_done_later(store: Store, tmp_path: Path) -> None:
    access = job_access(store, tmp_path / "objects", wall=lambda: 1_800_000_000.0)
    surface = Surface(jobs=access)
    made = read(await post(surface, {"jobs": [JOB] * 4}))["data"]
    assert [job["predicted_completion_at"] - 1_800_000_000 for job in made] == [2, 4, 6, 8]
    shown = read(await surface.get("/v1/jobs"))["data"]
    assert [job["predicted_completion_at"] - 1_800_000_000 for job in shown] == [8, 6, 4, 2]


async def test_holders_of_tokens_have_no_jobs(access: JobAccess) -> None:
    passing = Surface(jobs=access, keys=FakeKeys(Principal("jwt_1", "ann", "t", lasting=False)))
    asynchronous = await post(passing, JOB["body"], (b"prefer", b"respond-async"), path=CHAT)
    for refused in (await post(passing, JOB), asynchronous):
        assert (refused.status, error_in(refused.content)["code"]) == (403, "api_key_needed")
    assert read(await passing.get("/v1/jobs"))["data"] == []
