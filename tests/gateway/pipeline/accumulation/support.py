"""Requests as the stages before dispatch have them."""

from typing import Any

from gateway.domain.request import Principal, Request, RequestBody

BODY = b'{"model":"m","messages":[]}'


def request_of(body: RequestBody | None = None, route: str = "chat", **given: Any) -> Request:
    """One for a model ``m``, in one piece."""
    content = RequestBody(BODY, None, len(BODY)) if body is None else body
    members: dict[str, Any] = {"need": route, "streaming": False, **given}
    return Request(
        id="r",
        principal=Principal("k", "k", "t"),
        method="POST",
        path="/v1/chat/completions",
        headers=(("content-type", "application/json"), ("content-length", str(content.size_bytes))),
        model="m",
        route=route,
        body=content,
        arrived_s=0.0,
        **members,
    )
