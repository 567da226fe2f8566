"""Now, later or no."""

import pytest

from gateway.dispatch.admission import Admission
from gateway.domain.errors import (
    DeadlineExceeded,
    HeadersTooLarge,
    ModelNotFound,
    NoDeployment,
    QueueFull,
    RouteNotSupported,
)
from gateway.scheduling.queue.waiting_room import QueueSettings, WaitingRoom
from shared.protocol.limits import CONTROL_PAYLOAD_BYTES
from shared.protocol.messages import Headers, RequestHead
from tests.gateway.fleet.fleet import Fleet, deployment


def admission(fleet: Fleet, grace_s: float = 5.0, max_requests: int = 1000) -> Admission:
    return Admission(fleet.registry.index, WaitingRoom(QueueSettings(max_requests)), grace_s)


def test_a_served_model_admits() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment())
    ticket = admission(fleet).admit(fleet.request(), fleet.loop.now_s)
    assert ticket.waiting


def test_each_no_has_its_own_error() -> None:
    fleet = Fleet()
    door = admission(fleet, max_requests=0)
    now = fleet.loop.now_s
    with pytest.raises(ModelNotFound) as unknown:
        door.admit(fleet.request(), now)
    assert unknown.value.param == "model"
    agent = fleet.connect("a", deployment())
    with pytest.raises(RouteNotSupported) as other_route:
        door.admit(fleet.request(route="embeddings"), now)
    assert other_route.value.code == "route_not_supported"
    with pytest.raises(DeadlineExceeded):
        door.admit(fleet.request(deadline_s=now), now)
    with pytest.raises(QueueFull):
        door.admit(fleet.request(), now)
    fleet.cut(agent)
    with pytest.raises(NoDeployment) as gone:
        door.admit(fleet.request(), now + 5.0)
    assert gone.value.retry_after_s


@pytest.mark.parametrize("character", ["x", '"', "\t", "ÿ", "\\"])
@pytest.mark.parametrize("count", [1, 40, 100])
def test_what_is_admitted_fits_into_one_frame_and_what_is_not_nearly_fills_it(
    character: str, count: int
) -> None:
    fleet = Fleet()
    fleet.connect("a", deployment())
    door = admission(fleet)
    for total in range(4_000, 64_000, 3_000):
        headers: Headers = tuple((f"x-{number}", character * (total // count)) for number in range(count))
        request = fleet.request()
        request.headers = headers
        head = RequestHead(
            "d" * 256, "POST", request.path, headers, "m" * 256, "r" * 128, credit=2**53, deadline_s=1e9
        )
        size_bytes = len(head.to_payload())
        try:
            door.admit(request, fleet.loop.now_s)
        except HeadersTooLarge:
            assert size_bytes > CONTROL_PAYLOAD_BYTES - 8192
        else:
            assert size_bytes <= CONTROL_PAYLOAD_BYTES
