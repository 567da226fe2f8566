"""A waiting room and requests for it."""

from gateway.domain.request import Principal, Request, RequestBody, Tier
from gateway.scheduling.queue.waiting_room import QueueSettings, WaitingRoom


def request(model: str = "m", tier: Tier = Tier.STANDARD, **more: object) -> Request:
    fields: dict[str, object] = {
        "id": "r",
        "principal": Principal("k", "key", "tenant"),
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": (),
        "model": model,
        "route": "chat",
        "streaming": True,
        "body": RequestBody(b"12345"),
        "arrived_s": 0.0,
        "need": "chat",
        "tier": tier,
    }
    return Request(**(fields | more))  # type: ignore[arg-type]


def room(**settings: object) -> WaitingRoom:
    return WaitingRoom(QueueSettings(**settings))  # type: ignore[arg-type]
