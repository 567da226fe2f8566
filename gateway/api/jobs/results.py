"""The answer of a job, as its engine gave it; or why there is none."""

from gateway.api.errors import HeaderList
from gateway.api.exchange.exchange import HttpExchange
from gateway.domain.errors import DeadlineExceeded, JobCancelled, JobFailed, JobNotFinished, RequestError
from gateway.domain.jobs import JobOutcome, JobRecord, JobState
from gateway.jobs.service import JobService
from gateway.pipeline.relay import relayed_headers

JOB = b"x-trunkline-job"
_BODILESS = frozenset((204, 304))


async def send_result(
    service: JobService, exchange: HttpExchange, job: JobRecord, more: HeaderList | None = None
) -> None:
    """To be called within :meth:`HttpExchange.while_here`. Raises RequestError where there is none, and
    ObjectMissing where it is gone."""
    outcome = job.outcome
    if outcome is None:
        raise JobNotFinished(
            f"The job {job.id} is {job.state.value}: it has no result yet. Ask again later, with "
            "'Prefer: wait=60' to be answered when it has."
        )
    if outcome.result is None or outcome.status is None:
        raise no_result(job, outcome)
    headers = relayed_headers(
        tuple(field for field in outcome.headers if field[0] != "content-length"),
        event_stream=False,
        status=outcome.status,
    )
    headers += [(JOB, job.id.encode("ascii")), *(more or [])]
    bodiless = outcome.status in _BODILESS
    if not bodiless:
        headers.append((b"content-length", b"%d" % outcome.result_bytes))
    pieces = service.result(job)
    if exchange.method == "HEAD" or bodiless:
        await exchange.reply.start(outcome.status, headers)
        await exchange.reply.end()
        return
    first = await anext(pieces, b"")  # what is gone is known before the head goes out
    await exchange.reply.start(outcome.status, headers, body_follows=True)
    await exchange.reply.write(first)
    async for piece in pieces:
        await exchange.reply.write(piece)
    await exchange.reply.end()


def no_result(job: JobRecord, outcome: JobOutcome) -> RequestError:
    """Why a job that has ended has no result."""
    said = outcome.error or {}
    message = said.get("message")
    if job.state is JobState.CANCELLED:
        return JobCancelled(f"The job {job.id} was cancelled.")
    if job.state is JobState.EXPIRED:
        text = f"The deadline of the job {job.id} came before its end."
        return DeadlineExceeded(f"{text} {message}" if isinstance(message, str) else text)
    kind, code, param = said.get("type"), said.get("code"), said.get("param")
    error = JobFailed(
        message if isinstance(message, str) else f"The job {job.id} failed.",
        param=param if isinstance(param, str) else None,
    )
    error.status = outcome.status or error.status
    error.type = kind if isinstance(kind, str) else error.type
    error.code = code if isinstance(code, str) else error.code
    return error
