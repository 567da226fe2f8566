"""``/admin/jobs`` and ``/admin/batches``: those of all tenants, for operators (docs/admin.md).

They tell facts: no body, no metadata, no webhook, and of an error its code and status, since an engine may
repeat a prompt in its message. Whoever submitted a job reads the rest at ``/v1/jobs``.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from gateway.api.admin.resources.resource import Json
from gateway.api.admin.routes import AdminCall, AdminMethod, client_message, read_query
from gateway.api.jobs.forms import job_object
from gateway.api.openai.batches import batch_object
from gateway.domain.batches import BatchRecord, BatchState
from gateway.domain.errors import BadRequest, BatchNotCancellable, JobNotFailed
from gateway.domain.jobs import JobRecord, JobState
from gateway.domain.scopes import AdminRole
from gateway.jobs.batches.service import BatchService
from gateway.jobs.service import JobService
from gateway.storage.batches import BatchEnded
from gateway.storage.errors import RecordError, UnknownRecord

LISTED, MOST = 100, 500
"""Without ``limit``, and at most."""

NO_BATCH = "none"
"""As ``group``: jobs that are no lines of a batch."""

_LIMIT = {"type": "integer", "minimum": 1, "maximum": MOST}
_TEXT = {"type": "string", "maxLength": 1000}
_JOB_QUERY = dict.fromkeys(("status", "tenant", "key", "model", "group", "after"), _TEXT) | {"limit": _LIMIT}
_BATCH_QUERY = dict.fromkeys(("status", "tenant", "after"), _TEXT) | {"limit": _LIMIT}
_PRIVATE = ("metadata", "webhook", "progress_preview", "result", "error")

_State = TypeVar("_State", JobState, BatchState)


@dataclass(frozen=True)
class JobsAdmin:
    """The pages."""

    jobs: JobService
    batches: BatchService
    key_id: Callable[[str], str | None]
    """The id of a key by its name or id; None: there is none. Waits for the disk."""
    key_name: Callable[[str], str | None]
    """The name of a key by its id."""

    def methods(self) -> list[AdminMethod]:
        """What may be asked."""
        viewer, operator = AdminRole.VIEWER, AdminRole.OPERATOR
        return [
            AdminMethod("GET", "/admin/jobs", viewer, self.list_jobs, _JOB_QUERY),
            AdminMethod("POST", "/admin/jobs/{id}/cancel", operator, self.cancel_job),
            AdminMethod("POST", "/admin/jobs/{id}/retry", operator, self.retry_job),
            AdminMethod("GET", "/admin/batches", viewer, self.list_batches, _BATCH_QUERY),
            AdminMethod("POST", "/admin/batches/{id}/cancel", operator, self.cancel_batch),
        ]

    async def list_jobs(self, call: AdminCall) -> Json:
        """Jobs of all tenants that the query names, the newest first."""
        query = _known(read_query(call.exchange), _JOB_QUERY)
        limit, states, key_id = _limit(query), _states(query, JobState), None
        group = query.get("group")
        if "key" in query:
            key_id = await asyncio.to_thread(self.key_id, query["key"]) or query["key"]
        found = await self.jobs.list(
            query.get("tenant"),
            key_id=key_id,
            model=query.get("model"),
            group="" if group == NO_BATCH else group,
            states=states,
            after=query.get("after"),
            limit=limit + 1,
        )
        return await self._page("jobs", found, limit)

    async def cancel_job(self, call: AdminCall) -> Json:
        """One that waits is cancelled; one that runs ends soon; one that has ended stays as it is."""
        return await self._shown(await self.jobs.cancel(call.names["id"], None))

    async def retry_job(self, call: AdminCall) -> Json:
        """Queue a failed one again, with all its attempts."""
        try:
            again = await self.jobs.retry(call.names["id"], None)
        except UnknownRecord:
            raise
        except RecordError as error:
            raise JobNotFailed(client_message(error)) from None
        return await self._shown(again)

    async def list_batches(self, call: AdminCall) -> Json:
        """Batches of all tenants that the query names, the newest first."""
        query = _known(read_query(call.exchange), _BATCH_QUERY)
        limit, states = _limit(query), _states(query, BatchState)
        found = await self.batches.list(query.get("tenant"), query.get("after"), limit + 1, states)
        shown = [self._batch(each) for each in found[:limit]]
        return {"batches": shown, "next": shown[-1]["id"] if len(found) > limit else None}

    async def cancel_batch(self, call: AdminCall) -> Json:
        """Lines that have ended stay so."""
        try:
            batch = await self.batches.cancel(call.names["id"], None)
        except BatchEnded as error:
            raise BatchNotCancellable(client_message(error)) from None
        return self._batch(batch)

    # --- How they are shown ---

    async def _page(self, member: str, found: Sequence[JobRecord], limit: int) -> Json:
        completions = await self.jobs.completions(found[:limit])
        shown = [self._job(each, completions) for each in found[:limit]]
        return {member: shown, "next": shown[-1]["id"] if len(found) > limit else None}

    async def _shown(self, job: JobRecord) -> Json:
        return self._job(job, await self.jobs.completions([job]))

    def _job(self, job: JobRecord, completions: dict[str, float]) -> Json:
        new, outcome = job.new, job.outcome
        error: Any = None if outcome is None else outcome.error
        return self._whose(new.tenant, new.key_id) | {
            **{name: value for name, value in job_object(job, completions).items() if name not in _PRIVATE},
            "result_bytes": None if outcome is None or outcome.result is None else outcome.result_bytes,
            "error": None if error is None else str(error.get("code") or error.get("type") or "failed"),
            "error_status": None if outcome is None or error is None else outcome.status,
        }

    def _batch(self, batch: BatchRecord) -> Json:
        shown = {name: value for name, value in batch_object(batch).items() if name not in _PRIVATE}
        codes = sorted({str(error["code"]) for error in batch.errors})
        return self._whose(batch.new.tenant, batch.new.key_id) | shown | {"errors": codes}

    def _whose(self, tenant: str, key_id: str) -> Json:
        return {"tenant": tenant, "key_id": key_id, "key": self.key_name(key_id)}


def _known(query: dict[str, str], names: dict[str, Any]) -> dict[str, str]:
    """Without what is empty. Raises BadRequest for a parameter that nobody knows."""
    for name in query:
        if name not in names:
            raise BadRequest(f"There is no parameter {name[:100]!r} here.", param=name[:100])
    return {name: value for name, value in query.items() if value}


def _limit(query: dict[str, str]) -> int:
    """Raises BadRequest."""
    text = query.get("limit", str(LISTED))
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 1 <= int(text) <= MOST):
        raise BadRequest(f"'limit' is a number from 1 to {MOST}.", param="limit", code="invalid_value")
    return int(text)


def _states(query: dict[str, str], kind: type[_State]) -> list[_State]:
    """Of ``status=queued,running``. Raises BadRequest."""
    names: type[StrEnum] = kind
    try:
        return [kind(each.strip()) for each in query["status"].split(",")] if "status" in query else []
    except ValueError:
        known = ", ".join(names)
        raise BadRequest(
            f"'status' is one or more of {known}.", param="status", code="invalid_value"
        ) from None
