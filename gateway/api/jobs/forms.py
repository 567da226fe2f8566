"""How jobs look to clients."""

from collections.abc import Mapping
from typing import Any

from gateway.domain.jobs import JobRecord
from shared.protocol.progress import Preview

JOBS = "/v1/jobs"


def job_url(job_id: str) -> str:
    return f"{JOBS}/{job_id}"


def job_object(
    job: JobRecord, completions: Mapping[str, float], preview: Preview | None = None
) -> dict[str, Any]:
    """A job. ``completions``: when jobs will be done, by id (:meth:`JobService.completions`)."""
    new, outcome = job.new, job.outcome
    done_s = completions.get(job.id)
    result = None
    if outcome is not None and outcome.result is not None:
        types = [value for name, value in outcome.headers if name == "content-type"]
        result = {
            "status": outcome.status,
            "content_type": types[0] if types else None,
            "bytes": outcome.result_bytes,
            "url": f"{job_url(job.id)}/result",
        }
    return {
        "id": job.id,
        "object": "job",
        "status": job.state.value,
        "model": new.model,
        "path": new.path,
        "tier": new.tier,
        "created_at": int(job.created_s),
        "started_at": _whole(job.started_s),
        "finished_at": _whole(job.finished_s),
        "expires_at": _whole(new.deadline_s),
        "kept_until": _whole(job.kept_until_s),
        "predicted_completion_at": _whole(done_s),
        "predicted_seconds": _rounded(new.predicted_s),
        "predicted_cost": _rounded(new.predicted_cost),
        "progress": 1.0 if job.state == "succeeded" else job.progress,
        "progress_text": job.progress_text,
        "progress_preview": None if preview is None else preview.to_dict(),
        "attempts": job.attempts,
        "cancelling": job.cancelling and not job.state.is_final,
        "group": new.group,
        "custom_id": new.custom_id,
        "metadata": dict(new.metadata or {}),
        "webhook": new.webhook,
        "result": result,
        "error": None if outcome is None or outcome.error is None else dict(outcome.error),
    }


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
