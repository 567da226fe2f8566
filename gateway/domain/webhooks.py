"""Webhooks by the Standard Webhooks specification 1.0.0: their events, their signatures, and when another
attempt is made. Pure."""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum

from gateway.domain.jobs import JobState
from shared.process.frozen import frozen

RETRY_DELAYS_S = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""From each failed attempt to the next one; the first attempt is made at once."""

MOST_RETRY_AFTER_S = 86_400.0
"""A receiver may ask for so long a pause and no longer."""

JITTER = 0.1
"""A delay is longer by up to this part of it: those that failed together do not come again together."""

SECRET_PREFIX = "whsec_"  # noqa: S105 (no secret)
SECRET_BYTES = 32

RESPONSE_ID = "resp_"
"""Jobs whose ids begin so are responses of OpenAI's API, which have events of their own."""

_OF_RESPONSES = {
    JobState.SUCCEEDED: "response.completed",
    JobState.FAILED: "response.failed",
    JobState.CANCELLED: "response.cancelled",
    JobState.EXPIRED: "response.failed",
}
_GONE = 410


class DeliveryState(StrEnum):
    """Where the delivery of an event is."""

    WAITING = "waiting"
    """It was not delivered yet; another attempt is made when its time comes."""
    DELIVERED = "delivered"
    FAILED = "failed"
    """The last attempt failed, too."""
    GONE = "gone"
    """The receiver answered 410: it wants no more events of this object."""


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """Something happened that a client wants to hear of."""

    tenant: str
    object_id: str
    """Of what it happened to: a job, a response, a batch."""
    type: str
    """``job.succeeded``, ``batch.completed``, …"""
    url: str


@frozen
class Delivery:
    """An event on its way to its receiver. Times are seconds since 1970."""

    id: str
    """The event's: the same at every attempt."""
    event: WebhookEvent
    created_s: float
    state: DeliveryState
    attempts: int
    """Begun so far."""
    generation: int
    """Rises with each attempt: only who made the last one may say what came of it."""
    next_s: float
    """When the next attempt is due, while it waits."""
    attempted_s: float | None = None
    """When the last attempt began."""
    ended_s: float | None = None
    status: int | None = None
    """What the receiver answered last; None: nothing."""
    error: str | None = None
    """Why the last attempt failed."""

    @property
    def body(self) -> bytes:
        """The event as OpenAI's SDKs read it; the same bytes at every attempt."""
        return json.dumps(
            {
                "id": self.id,
                "object": "event",
                "created_at": int(self.created_s),
                "type": self.event.type,
                "data": {"id": self.event.object_id},
            }
        ).encode()


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """What came of one attempt."""

    status: int | None = None
    """What the receiver answered; None: nothing."""
    retry_after: str | None = None
    """The header field, as it came."""
    error: str | None = None
    """Why there was no answer."""


@dataclass(frozen=True, slots=True)
class DeliveryVerdict:
    """What follows from an attempt."""

    state: DeliveryState
    next_s: float | None = None
    """When to try again, if it waits."""
    status: int | None = None
    error: str | None = None


def job_event_type(job_id: str, state: JobState) -> str:
    """What the end of a job is called."""
    return _OF_RESPONSES[state] if job_id.startswith(RESPONSE_ID) else f"job.{state.value}"


def new_event_id() -> str:
    """Without a dot, which separates the parts of what is signed."""
    return "evt_" + secrets.token_hex(16)


def new_webhook_secret() -> str:
    """Its text, as receivers take it."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def webhook_headers(event_id: str, body: bytes, at_s: float, signers: Iterable[str]) -> dict[str, str]:
    """The header fields of an attempt at ``at_s``, signed with each secret of ``signers``."""
    signed = f"{event_id}.{int(at_s)}.".encode() + body
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(int(at_s)),
        "webhook-signature": " ".join(_signature(secret, signed) for secret in signers),
    }


def judge_attempt(result: AttemptResult, attempts: int, now_s: float, chance: float) -> DeliveryVerdict:
    """What follows from the last of ``attempts`` attempts. ``chance`` is random, from 0 to 1."""
    status, error = result.status, result.error
    if status is not None and 200 <= status < 300:
        return DeliveryVerdict(DeliveryState.DELIVERED, None, status)
    if status is not None and 300 <= status < 400:
        error = f"it answers {status}: redirects are not followed"
    elif status is not None:
        error = f"it answers {status}"
    if status == _GONE:
        return DeliveryVerdict(DeliveryState.GONE, None, status, error)
    if attempts > len(RETRY_DELAYS_S):
        return DeliveryVerdict(DeliveryState.FAILED, None, status, error)
    delay_s = RETRY_DELAYS_S[max(attempts, 1) - 1] * (1.0 + JITTER * chance)
    asked_s = 0.0 if result.retry_after is None else read_retry_after(result.retry_after, now_s)
    return DeliveryVerdict(DeliveryState.WAITING, now_s + max(delay_s, asked_s), status, error)


def read_retry_after(text: str, now_s: float) -> float:
    """Seconds, from 0 to ``MOST_RETRY_AFTER_S``; 0 for what cannot be read (RFC 9110, section 10.2.3)."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MOST_RETRY_AFTER_S)
    try:
        at = parsedate_to_datetime(text)
        asked_s = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() - now_s
    except (ValueError, OverflowError):
        return 0.0
    return min(max(asked_s, 0.0), MOST_RETRY_AFTER_S)


def _signature(secret: str, signed: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
