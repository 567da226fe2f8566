"""Any request may become a job when its client prefers so."""

import asyncio

import orjson
import pytest

from gateway.api.jobs.pages import JobAccess
from gateway.domain.jobs import ObjectSlice
from gateway.domain.request import Principal
from gateway.domain.scopes import limited
from gateway.storage.errors import ObjectStorageFull
from gateway.storage.objects import ObjectStore
from tests.gateway.api.jobs.access import JobDoer
from tests.gateway.api.support import ASK, BEARER, CHAT, JSON_TYPE, STREAM, Surface, error_in

ASYNC = (b"prefer", b"respond-async")


async def body_of(doer: JobDoer, at: ObjectSlice) -> bytes:
    return await doer.objects.read_bytes(at.name, 10_000_000)


async def test_a_request_becomes_a_job(surface: Surface, access: JobAccess, doer: JobDoer) -> None:
    call = await surface.post(CHAT, STREAM, JSON_TYPE, ASYNC, (b"x-seed", b"7"))
    made = orjson.loads(call.content)
    assert (call.status, call.headers["location"]) == (202, f"/v1/jobs/{made['id']}")
    assert call.headers["preference-applied"] == "respond-async"
    assert (made["object"], made["status"], made["tier"]) == ("job", "queued", "batch")
    job = await access.service.get(made["id"], "default")
    assert (job.new.path, job.new.model) == (CHAT, "m")
    assert ("x-seed", "7") in job.new.headers
    assert not {"authorization", "prefer"} & {name for name, _ in job.new.headers}
    assert await body_of(doer, job.new.body) == STREAM, "as its client wrote it"
    assert surface.dispatcher.requests == []


async def test_a_header_says_who_is_told_of_its_end(surface: Surface, access: JobAccess) -> None:
    call = await surface.post(CHAT, ASK, JSON_TYPE, ASYNC, (b"x-trunkline-webhook", b"https://e.example/h"))
    made = orjson.loads(call.content)
    assert made["webhook"] == "https://e.example/h"
    job = await access.service.get(made["id"], "default")
    assert "x-trunkline-webhook" not in dict(job.new.headers)
    refused = await surface.post(
        CHAT, ASK, JSON_TYPE, ASYNC, (b"x-trunkline-webhook", b"https://refused.example/")
    )
    assert (refused.status, error_in(refused.content)["code"]) == (400, "webhook_refused")
    plain = await surface.post(CHAT, ASK, JSON_TYPE, ASYNC)
    assert orjson.loads(plain.content)["webhook"] == "https://operator.example/hook"


async def test_its_path_keeps_its_query_and_its_model(surface: Surface, access: JobAccess) -> None:
    call = surface.ask(
        "POST", "/engines/org%2Fm/run", BEARER, ASYNC, JSON_TYPE, query=b"a=1", decoded="/engines/org/m/run"
    )
    call.body(b"{}")
    await call.done()
    job = await access.service.get(orjson.loads(call.content)["id"], "default")
    assert (job.new.path, job.new.model) == ("/engines/org%2Fm/run?a=1", "org/m")


async def test_a_form_is_kept_as_it_came(surface: Surface, access: JobAccess, doer: JobDoer) -> None:
    form = (
        b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nw\r\n'
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        + b"s" * 3_000_000
        + b"\r\n--x--\r\n"
    )
    kind = b"multipart/form-data; boundary=x"
    call = surface.ask("POST", "/v1/audio/transcriptions", BEARER, ASYNC, (b"content-type", kind))
    call.body(form[:2_000_000], more=True)
    call.body(form[2_000_000:])
    await call.done(30)
    job = await access.service.get(orjson.loads(call.content)["id"], "default")
    assert job.new.model == "w"
    assert ("content-type", kind.decode()) in job.new.headers
    assert await body_of(doer, job.new.body) == form


@pytest.mark.parametrize("prefer", [b"wait=5", b"return=minimal", b""])
async def test_without_the_preference_it_is_answered_at_once(surface: Surface, prefer: bytes) -> None:
    call = await surface.post(CHAT, ASK, JSON_TYPE, (b"prefer", prefer))
    assert (call.status, call.content) == (200, b'{"ok":true}')


async def test_only_a_post_becomes_a_job(surface: Surface) -> None:
    call = await surface.get("/engines/m/status", ASYNC)
    assert (call.status, call.content) == (200, b'{"ok":true}')


async def test_with_a_wait_the_result_comes_at_once(surface: Surface, doer: JobDoer) -> None:
    call = surface.ask("POST", CHAT, BEARER, JSON_TYPE, (b"prefer", b"respond-async, wait=60"))
    call.body(ASK)
    async with asyncio.timeout(30):
        while not doer.store.jobs.list(limit=1):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await doer.answer(doer.claim(), b'{"done":1}')
    await call.done(30)
    assert (call.status, call.content) == (200, b'{"done":1}')
    assert call.headers["preference-applied"] == "respond-async, wait=60"
    assert call.headers["content-location"] == f"/v1/jobs/{call.headers['x-trunkline-job']}/result"


async def test_a_wait_that_is_not_enough_ends_with_the_job(surface: Surface) -> None:
    call = await surface.post(CHAT, ASK, JSON_TYPE, (b"prefer", b"respond-async, wait=0"))
    assert (call.status, call.headers["preference-applied"]) == (202, "respond-async")


async def test_the_same_key_makes_one_job(surface: Surface, access: JobAccess) -> None:
    key = (b"idempotency-key", b"once")
    first, again = [await surface.post(CHAT, ASK, JSON_TYPE, ASYNC, key) for _ in range(2)]
    assert first.headers["location"] == again.headers["location"]
    assert again.headers["idempotent-replayed"] == "true"
    other = await surface.post(CHAT, STREAM, JSON_TYPE, ASYNC, key)
    assert (other.status, error_in(other.content)["code"]) == (422, "idempotency_key_reused")
    assert len(await access.service.list("default")) == 1


async def test_what_cannot_be_asked_for_is_no_job(surface: Surface, access: JobAccess) -> None:
    assert (await surface.post(CHAT, b"{", JSON_TYPE, ASYNC)).status == 400
    assert (await surface.post(CHAT, ASK, JSON_TYPE, ASYNC, key=False)).status == 401
    surface.keys.principal = Principal("k", "k", "default", scopes=limited(models=["other"]))
    assert (await surface.post(CHAT, ASK, JSON_TYPE, ASYNC)).status == 403
    assert await access.service.list("default") == ()


async def test_a_client_that_leaves_before_its_body_leaves_no_job(
    surface: Surface, access: JobAccess, doer: JobDoer
) -> None:
    call = surface.ask("POST", CHAT, BEARER, JSON_TYPE, ASYNC)
    call.body(b'{"model"', more=True)
    call.disconnect()
    await call.done(30)
    assert surface.finished[-1][1] == 499
    assert await access.service.list("default") == ()
    assert await doer.objects.names("jobs") == []


async def test_without_room_there_is_no_job(
    surface: Surface, access: JobAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise ObjectStorageFull("full")

    monkeypatch.setattr(ObjectStore, "put", full)
    call = await surface.post(CHAT, ASK, JSON_TYPE, ASYNC)
    assert (call.status, error_in(call.content)["code"]) == (507, "storage_full")
    assert await access.service.list("default") == ()
