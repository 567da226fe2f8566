"""What a submission must be: every member of every job is looked at, and named where it is wrong."""

import time
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from gateway.api.jobs.pages import JobAccess
from gateway.api.jobs.submission import PreparedJobs, prepare_jobs
from gateway.domain.errors import BadRequest, Forbidden, RequestError
from gateway.domain.request import Principal
from gateway.domain.scopes import limited
from tests.gateway.api.jobs.access import accept_webhook

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": []}
PRINCIPAL = Principal("k1", "tests", "default")


async def prepared(access: JobAccess, sent: object, principal: Principal = PRINCIPAL) -> PreparedJobs:
    return await prepare_jobs(access.service, principal, orjson.dumps(sent), (), accept_webhook)


async def refused(access: JobAccess, sent: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await prepared(access, sent)
    return caught.value


async def test_one_job_is_read(access: JobAccess) -> None:
    now_s = time.time()
    found = await prepared(
        access,
        {
            "path": CHAT,
            "body": BODY,
            "tier": "standard",
            "expires_after": {"anchor": "created_at", "seconds": 60},
            "webhook": "https://example.com/hook",
            "custom_id": "a",
            "metadata": {"color": "blue"},
        },
    )
    (job,) = found.jobs
    assert not found.many
    assert (job.path, job.tier, job.webhook, job.custom_id) == (
        CHAT,
        "standard",
        "https://example.com/hook",
        "a",
    )
    assert now_s + 59 < (job.deadline_s or 0) < time.time() + 61
    assert job.metadata == {"color": "blue"}
    assert orjson.loads(found.bodies[job.id]) == BODY
    assert ("content-type", "application/json") in job.headers


async def test_a_job_without_a_webhook_has_the_operators(access: JobAccess) -> None:
    own = {"path": CHAT, "body": BODY, "webhook": {"url": "https://example.com/a"}}
    found = await prepared(access, {"jobs": [{"path": CHAT, "body": BODY}, own]})
    assert [job.webhook for job in found.jobs] == ["https://operator.example/hook", "https://example.com/a"]


@pytest.mark.parametrize("when", [{"expires_after": 60}, {"deadline": time.time() + 86_000}, {}])
async def test_a_deadline_may_be_said_in_several_ways(access: JobAccess, when: Mapping[str, Any]) -> None:
    (job,) = (await prepared(access, {"path": CHAT, "body": BODY, **when})).jobs
    assert job.deadline_s is not None


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"path": None}, "path"),
        ({"path": 5}, "path"),
        ({"path": "nowhere"}, "path"),
        ({"path": "/v1/models"}, "path"),
        ({"path": CHAT + "?a=\n"}, "path"),
        ({"body": None}, "body"),
        ({"body": "text"}, "body"),
        ({"body": []}, "body"),
        ({"body": {}}, "body.model"),
        ({"body": {"model": 5}}, "body.model"),
        ({"body": {"model": "a b"}}, "body.model"),
        ({"body": {"model": "m", "stream": 1}}, "body.stream"),
        ({"tier": "urgent"}, "tier"),
        ({"tier": 1}, "tier"),
        ({"deadline": 5}, "deadline"),
        ({"deadline": "tomorrow"}, "deadline"),
        ({"deadline": True}, "deadline"),
        ({"deadline": 9e18}, "deadline"),
        ({"deadline": 1e9, "expires_after": 5}, "deadline"),
        ({"expires_after": 0}, "expires_after"),
        ({"expires_after": -1}, "expires_after"),
        ({"expires_after": 10**9}, "expires_after"),
        ({"expires_after": "5"}, "expires_after"),
        ({"expires_after": {}}, "expires_after"),
        ({"expires_after": {"seconds": 5, "anchor": "last_active_at"}}, "expires_after"),
        ({"expires_after": {"seconds": 5, "more": 1}}, "expires_after"),
        ({"webhook": 5}, "webhook"),
        ({"webhook": "ftp://example.com"}, "webhook"),
        ({"webhook": {"url": "https://example.com", "more": 1}}, "webhook"),
        ({"webhook": "https://refused.example/"}, "webhook"),
        ({"webhook": "https://"}, "webhook"),
        ({"webhook": "https://[::1"}, "webhook"),
        ({"webhook": "https://example.com:x/"}, "webhook"),
        ({"webhook": "https://e/" + "x" * 2048}, "webhook"),
        ({"custom_id": ""}, "custom_id"),
        ({"custom_id": 5}, "custom_id"),
        ({"custom_id": "x" * 513}, "custom_id"),
        ({"custom_id": "a\nb"}, "custom_id"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": 5}}, "metadata"),
        ({"metadata": {"": "x"}}, "metadata"),
        ({"metadata": {"a" * 65: "x"}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(each): "x" for each in range(17)}}, "metadata"),
        ({"group": "batch_1"}, "group"),
        ({"model": "m"}, "model"),
    ],
)
async def test_what_is_wrong_is_named(access: JobAccess, members: Mapping[str, Any], param: str) -> None:
    job = {"path": CHAT, "body": BODY, **members}
    assert (await refused(access, job)).param == param
    among = await refused(access, {"jobs": [{"path": CHAT, "body": BODY}, job]})
    assert among.param == f"jobs.1.{param}"
    assert among.message.startswith("jobs.1: ")
    assert 400 <= among.status < 500


async def test_a_job_has_its_path_and_its_body(access: JobAccess) -> None:
    assert (await refused(access, {"body": BODY})).param == "path"
    assert (await refused(access, {"path": CHAT})).param == "body"
    assert (await refused(access, {})).param == "path"


@pytest.mark.parametrize("jobs", [[], None, 5, {}, [5], [None], [{"path": CHAT, "body": BODY}] * 1001])
async def test_a_list_has_one_to_a_thousand(access: JobAccess, jobs: object) -> None:
    with pytest.raises(BadRequest) as caught:
        await prepared(access, {"jobs": jobs})
    assert (caught.value.param or "").startswith("jobs")


async def test_beside_a_list_there_is_nothing(access: JobAccess) -> None:
    await refused(access, {"jobs": [{"path": CHAT, "body": BODY}], "tier": "batch"})


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"5", b"\xff", b"[" * 100_000])
async def test_it_is_a_json_object(access: JobAccess, data: bytes) -> None:
    with pytest.raises(BadRequest):
        await prepare_jobs(access.service, PRINCIPAL, data, (), accept_webhook)


async def test_an_engines_own_path_takes_any_json(access: JobAccess) -> None:
    (job,) = (await prepared(access, {"path": "/engines/m/run", "body": [1, 2]})).jobs
    assert (job.model, job.path) == ("m", "/engines/m/run")


async def test_a_key_that_may_not_is_told_what_it_may(access: JobAccess) -> None:
    scoped = Principal("k", "k", "t", scopes=limited(models=["other"], tiers=["batch"]))
    with pytest.raises(Forbidden) as model:
        await prepared(access, {"path": CHAT, "body": BODY}, scoped)
    assert model.value.param == "body.model"
    with pytest.raises(Forbidden) as tier:
        await prepared(access, {"path": CHAT, "body": {"model": "other"}, "tier": "realtime"}, scoped)
    assert tier.value.param == "tier"
