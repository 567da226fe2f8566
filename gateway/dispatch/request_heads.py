"""The head of the request that goes to a deployment (PROTOCOL §4.1), and what the head of its response
says of the body. Pure."""

from gateway.domain.request import Request
from gateway.fleet.deployment import Deployment
from shared.protocol.followed import FOLLOWED
from shared.protocol.messages import Headers, RequestHead

GATHER_S = 0.1
"""Time for which an agent may hold back events of an answer that is put together before anybody reads it.
What it holds is lost when the request gives way."""

_JSON = "content-type", "application/json"
_FOLLOWED = "content-type", FOLLOWED


class DeploymentNotPermitted(Exception):
    """The request may not run there. Whoever chose the deployment is at fault; nothing is sent."""


def head_for(
    request: Request, deployment: Deployment, now: float, length_bytes: int | None = None
) -> RequestHead:
    """``length_bytes`` is that of the body when it is another than the client's.

    Nothing goes to a deployment without a head, so this is where residency is kept whatever else went wrong.
    Raises DeploymentNotPermitted.
    """
    where, key_where = request.where, request.principal.where
    if (where is not None and not where.allows(deployment.labels)) or (
        key_where is not None and not key_where.allows(deployment.labels)
    ):
        raise DeploymentNotPermitted(f"{deployment.key} is not where {request.id} may run")
    if request.barred is not None and request.barred(request, deployment.kind):
        raise DeploymentNotPermitted(f"{request.id} manages {deployment.key} and its key may not")
    left_s = None
    if request.deadline_s is not None and not request.streaming:
        left_s = max(0.0, request.deadline_s - now)
    headers = request.headers
    if length_bytes is not None:
        kept = tuple((name, value) for name, value in headers if name != "content-length")
        headers = (*kept, ("content-length", str(length_bytes)))
    head = RequestHead(  # in the order of the fields; names would take twice as long
        deployment.id,
        request.method,
        request.path,
        headers,
        request.model,
        request.id,
        request.streaming,
        request.usage,
        request.tier,
        left_s,
        0,
        request.trace,
    )
    if request.upgrade:
        head.upgrade = True
    if request.streamed_output is not None and request.streaming:
        head.gather_s = GATHER_S
    if deployment.asked_as:  # its agent is a gateway, which chooses among agents itself
        head.via = (*request.via, deployment.asked_as)
        if where is not None and (allowed := where.to_dict()):
            head.where = {name: tuple(values) for name, values in allowed.items()}
    return head


def is_event_stream(headers: Headers) -> bool:
    """Whether the body is server-sent events as they stand: in an encoded one nothing can be read, and to it
    nothing be added."""
    if _JSON in headers:  # as nearly every answer that comes in one piece
        return False
    found = False
    for name, value in headers:
        if name == "content-type":
            found = found or value[:17].lower() == "text/event-stream"
        elif name == "content-encoding" and _is_coding(value):
            return False
    return found


def comes_by_and_by(headers: Headers) -> bool:
    """Whether an answer is for reading while it comes, streamed or not (:mod:`shared.protocol.followed`)."""
    return _FOLLOWED in headers or is_event_stream(headers)


def is_encoded(headers: Headers) -> bool:
    """Whether the body is compressed, or encoded otherwise (RFC 9110 §8.4). Engines are asked not to."""
    return any(name == "content-encoding" and _is_coding(value) for name, value in headers)


def _is_coding(value: str) -> bool:
    return value.strip().lower() not in ("", "identity")
