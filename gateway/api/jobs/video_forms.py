"""How videos look to clients: as OpenAI's SDKs read them. Pure."""

import secrets
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.api.exchange.job_exchange import FACTS
from gateway.api.jobs.video_bodies import AskedVideo
from gateway.domain.jobs import JobOutcome, JobRecord, JobState

VIDEO_ID = "video_"
"""Ids of jobs that are videos begin so."""
REMIXED_FROM = "remixed_from_video_id"
"""The note of a job that says which video it is a remix of."""
SECONDS, SIZE = "4", "720x1280"
"""OpenAI's, for requests and engines that say none."""

_STATUS: Mapping[JobState, str] = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "failed",
    JobState.EXPIRED: "failed",
}
NO_VIDEO = {
    "code": "no_video",
    "message": "The engine answered with JSON in place of a video. If it makes videos by itself "
    "(POST /v1/videos gives an id), its agent must be of a version that follows it.",
}
_CANCELLED = {"code": "cancelled", "message": "The video was cancelled."}


def new_video_id() -> str:
    return VIDEO_ID + secrets.token_hex(24)


def content_type_of(outcome: JobOutcome) -> str:
    """Of the video's bytes."""
    return next((value for name, value in outcome.headers if name == "content-type"), "video/mp4")


def has_content(job: JobRecord) -> bool:
    """Whether there are bytes of a video."""
    outcome = job.outcome
    if job.state is not JobState.SUCCEEDED or outcome is None or outcome.result is None:
        return False
    return "json" not in content_type_of(outcome)


def video_object(job: JobRecord, asked: AskedVideo) -> dict[str, Any]:
    """A video. ``asked``: what its request says, as far as that is known."""
    outcome = job.outcome
    done = has_content(job)
    lost = job.state is JobState.SUCCEEDED and not done
    status = "failed" if lost else _STATUS[job.state]
    facts = _facts(outcome)
    return {
        "id": job.id,
        "object": "video",
        "created_at": int(job.created_s),
        "completed_at": int(job.finished_s) if done and job.finished_s is not None else None,
        "expires_at": int(job.kept_until_s) if done and job.kept_until_s is not None else None,
        "status": status,
        "model": job.new.model,
        "progress": 100 if done else min(99, int(100 * (job.progress or 0.0))),
        "prompt": asked.prompt,
        "seconds": facts.get("seconds") or asked.seconds or SECONDS,
        "size": facts.get("size") or asked.size or SIZE,
        "remixed_from_video_id": (job.new.metadata or {}).get(REMIXED_FROM),
        "error": (NO_VIDEO if lost else _error(job)) if status == "failed" else None,
    }


def _facts(outcome: JobOutcome | None) -> Mapping[str, Any]:
    said = None if outcome is None else next((v for name, v in outcome.headers if name == FACTS), None)
    if said is None:
        return {}
    found: Mapping[str, Any] = orjson.loads(said)
    return found


def _error(job: JobRecord) -> Mapping[str, str]:
    if job.state is JobState.CANCELLED:
        return _CANCELLED
    said = {} if job.outcome is None or job.outcome.error is None else job.outcome.error
    return {
        "code": str(said.get("code") or "video_failed"),
        "message": str(said.get("message") or "The video failed."),
    }
