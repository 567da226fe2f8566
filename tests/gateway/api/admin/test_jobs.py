"""Operators see the jobs and batches of all tenants, and cancel and repeat them."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from gateway.api.admin.jobs import JobsAdmin
from gateway.domain.batches import NewBatch
from gateway.domain.jobs import JobOutcome, JobState, NewJob, ObjectSlice
from gateway.domain.scopes import AdminRole
from gateway.jobs.batches.result_lines import FinishedLines, ResultLines
from gateway.jobs.batches.service import BatchService
from gateway.storage import schema
from gateway.storage.batches import values_of
from gateway.storage.jobs import JobBounds, JobClaim, Submission
from tests.gateway.api.admin.house import House
from tests.gateway.api.jobs.access import job_access

SECRET = "the prompt"
NOW_S = 1000.0


@pytest.fixture
def jobs(house: House, tmp_path: Path) -> House:
    access, store = job_access(house.store, tmp_path / "objects", wall=lambda: NOW_S), house.store
    lines = FinishedLines(store.jobs, ResultLines(None), lambda: NOW_S)  # type: ignore[arg-type]
    batches = BatchService(store.batches, lambda: None, lambda: NOW_S, lines)

    def key_id(name: str) -> str | None:
        return {"alice": "key_1"}.get(name)

    house.offer(JobsAdmin(access.service, batches, key_id, {"key_1": "alice"}.get).methods())
    for number, (tenant, model, key) in enumerate(
        (("acme", "llama", "key_1"), ("uni", "llama", "key_2"), ("uni", "qwen", "key_2"))
    ):
        job = NewJob(
            f"job-{number}",
            tenant,
            key,
            model,
            "/v1/chat/completions",
            ObjectSlice(f"body-{number}"),
            (),
            "batch",
            5000.0,
            0.0,
            group="batch_1" if model == "qwen" else None,
            webhook="https://hook.example/secret",
            predicted_s=4.0,
            metadata={"note": SECRET},
        )
        store.jobs.submit(Submission(tenant, (job,)), JobBounds(), NOW_S)
    return house


def run_and_fail(house: House) -> None:
    """The oldest job of llama runs and fails, in an engine that repeats the prompt."""
    claims = house.store.job_claims
    (job,) = claims.claim(JobClaim("p", 1, "llama", 1, 30.0), NOW_S)
    error = {"code": "engine_failed", "message": f"cannot do {SECRET}"}
    assert job.lease is not None
    outcome = JobOutcome(JobState.FAILED, 502, error=error)
    assert claims.publish(job.id, job.lease, outcome, NOW_S, NOW_S + 1000)


async def ids(house: House, query: str = "") -> list[str]:
    status, found, _ = await house.ask("GET", "/admin/jobs", AdminRole.VIEWER, query=query.encode())
    assert status == 200, found
    return [each["id"] for each in found["jobs"]]


def acts(house: House) -> list[tuple[str, Any]]:
    return [(each.kind, dict(each.what)) for each in house.store.acts.pending(100) if "key" not in each.kind]


async def test_jobs_of_all_tenants_are_shown_with_progress_and_prediction(jobs: House) -> None:
    run_and_fail(jobs)
    _, found, _ = await jobs.ask("GET", "/admin/jobs", AdminRole.VIEWER)
    newest, queued, failed = found["jobs"]
    assert (newest["id"], newest["tenant"], newest["key_id"], newest["key"]) == (
        "job-2",
        "uni",
        "key_2",
        None,
    )
    assert (queued["status"], queued["predicted_seconds"], queued["tier"]) == ("queued", 4.0, "batch")
    assert queued["predicted_completion_at"] == NOW_S + 4
    assert (failed["key"], failed["status"], failed["attempts"]) == ("alice", "failed", 1)
    assert (failed["error"], failed["error_status"]) == ("engine_failed", 502)
    assert found["next"] is None


async def test_nothing_of_what_clients_wrote_is_shown(jobs: House) -> None:
    run_and_fail(jobs)
    _, found, _ = await jobs.ask("GET", "/admin/jobs", AdminRole.VIEWER)
    assert SECRET not in str(found)
    assert "hook.example" not in str(found)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("tenant=uni", ["job-2", "job-1"]),
        ("model=llama", ["job-1", "job-0"]),
        ("key=alice", ["job-0"]),
        ("key=key_2", ["job-2", "job-1"]),
        ("key=nobody", []),
        ("group=batch_1", ["job-2"]),
        ("group=none", ["job-1", "job-0"]),
        ("status=queued,running&tenant=acme", ["job-0"]),
        ("status=failed", []),
        ("tenant=&model=qwen", ["job-2"]),
    ],
)
async def test_filters_are_the_stores_own(jobs: House, query: str, wanted: list[str]) -> None:
    assert await ids(jobs, query) == wanted


async def test_pages_go_on_where_the_one_before_ended(jobs: House) -> None:
    _, found, _ = await jobs.ask("GET", "/admin/jobs", AdminRole.VIEWER, query=b"limit=2")
    assert (len(found["jobs"]), found["next"]) == (2, "job-1")
    assert await ids(jobs, "limit=2&after=job-1") == ["job-0"]


@pytest.mark.parametrize("query", ["status=lost", "limit=0", "limit=501", "limit=x", "state=queued"])
async def test_what_no_filter_can_be_is_refused(jobs: House, query: str) -> None:
    for path in ("/admin/jobs", "/admin/batches"):
        status, found, _ = await jobs.ask("GET", path, AdminRole.VIEWER, query=query.encode())
        assert (status, found["error"]["param"]) == (400, query.partition("=")[0])


async def test_an_operator_cancels_and_repeats_jobs_of_any_tenant_and_both_are_noted(jobs: House) -> None:
    run_and_fail(jobs)
    status, found, _ = await jobs.ask("POST", "/admin/jobs/job-0/retry", AdminRole.OPERATOR)
    assert (status, found["status"], found["error"]) == (200, "queued", None)
    status, found, _ = await jobs.ask("POST", "/admin/jobs/job-0/retry", AdminRole.OPERATOR)
    assert (status, found["error"]["code"]) == (409, "job_not_failed")
    for _ in range(2):
        status, found, _ = await jobs.ask("POST", "/admin/jobs/job-2/cancel", AdminRole.OPERATOR)
        assert (status, found["status"]) == (200, "cancelled")
    assert acts(jobs) == [
        ("job.retry", {"id": "job-0", "tenant": "acme"}),
        ("job.cancel", {"id": "job-2", "tenant": "uni"}),
    ]
    for act in ("cancel", "retry"):
        status, found, _ = await jobs.ask("POST", f"/admin/jobs/job-9/{act}", AdminRole.OPERATOR)
        assert (status, found["error"]["code"]) == (404, "not_found")


async def test_batches_of_all_tenants_are_shown_and_cancelled(jobs: House) -> None:
    for number, tenant in enumerate(("acme", "uni")):
        add_batch(jobs, f"batch_{number}", tenant)
    _, found, _ = await jobs.ask("GET", "/admin/batches", AdminRole.VIEWER)
    assert [(each["id"], each["tenant"]) for each in found["batches"]] == [
        ("batch_1", "uni"),
        ("batch_0", "acme"),
    ]
    assert SECRET not in str(found)
    _, found, _ = await jobs.ask("GET", "/admin/batches", AdminRole.VIEWER, query=b"tenant=acme")
    assert [each["id"] for each in found["batches"]] == ["batch_0"]
    _, found, _ = await jobs.ask("GET", "/admin/batches", AdminRole.VIEWER, query=b"limit=1")
    assert found["next"] == "batch_1"
    status, found, _ = await jobs.ask("POST", "/admin/batches/batch_0/cancel", AdminRole.OPERATOR)
    assert (status, found["status"]) == (200, "cancelled")
    _, found, _ = await jobs.ask("GET", "/admin/batches", AdminRole.VIEWER, query=b"status=validating")
    assert [each["id"] for each in found["batches"]] == ["batch_1"]
    assert acts(jobs) == [("batch.cancel", {"id": "batch_0", "tenant": "acme"})]


def add_batch(house: House, batch_id: str, tenant: str) -> None:
    new = NewBatch(
        batch_id, tenant, "key_1", {}, "/v1/embeddings", "file-1", "24h", NOW_S, NOW_S + 1, {"note": SECRET}
    )
    with house.store.database.write() as connection:
        connection.execute(insert(schema.batches).values(values_of(new)))


async def test_it_takes_an_operator_to_change_something(jobs: House) -> None:
    add_batch(jobs, "batch_0", "acme")
    for path in ("jobs/job-0/cancel", "jobs/job-0/retry", "batches/batch_0/cancel"):
        status, found, _ = await jobs.ask("POST", f"/admin/{path}", AdminRole.VIEWER)
        assert (status, found["error"]["code"]) == (403, "role_required")
    for path in ("jobs", "batches"):
        assert (await jobs.ask("GET", f"/admin/{path}", None))[0] == 403
    assert acts(jobs) == []
