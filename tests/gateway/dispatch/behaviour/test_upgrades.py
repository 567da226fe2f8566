"""Requests for a WebSocket among deployments that take them and others (PROTOCOL §5.5)."""

from collections.abc import AsyncIterator

from gateway.domain.errors import RouteNotSupported
from gateway.domain.request import Request, RequestBody
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import DeploymentState, ResponseHead
from shared.protocol.progress import Progress
from shared.protocol.routes import UPGRADE_NEED
from tests.gateway.fleet.fleet import FakeAgent, Fleet

LONG_S = 3900.0
"""Longer than any answer may take, and than any engine may be silent."""


async def _messages() -> AsyncIterator[bytes]:
    yield b"pieces"


def asking(fleet: Fleet) -> Request:
    request = fleet.request(route="any", body=RequestBody(b"", _messages(), None), upgrade=True)
    request.method, request.path, request.need = "GET", "/ws", UPGRADE_NEED
    return request


def agent(fleet: Fleet, name: str, *, upgrades: bool) -> FakeAgent:
    return fleet.connect(name, DeploymentState("d", "m", routes=("any",), slots=2, upgrades=upgrades))


def test_an_agent_of_an_earlier_release_is_never_asked_for_a_websocket() -> None:
    fleet = Fleet()
    old = agent(fleet, "old", upgrades=False)
    refused = fleet.submit(asking(fleet))
    assert isinstance(refused.error, RouteNotSupported)
    assert "WebSocket" in refused.error.message
    new = agent(fleet, "new", upgrades=True)
    for _ in range(2):
        fleet.submit(asking(fleet))
    assert (len(old.streams), len(new.streams)) == (0, 2)
    assert all(each.head.upgrade for each in new.streams)
    ordinary = fleet.submit()
    assert not (old.streams or new.streams)[-1].head.upgrade
    assert ordinary.exchange is not None


def test_a_request_that_no_engine_saw_goes_to_another_deployment_with_all_that_its_client_says() -> None:
    fleet = Fleet()
    both = [agent(fleet, name, upgrades=True) for name in "ab"]
    client = fleet.submit(asking(fleet))
    (first,) = [each for each in both if each.streams]
    (other,) = [each for each in both if not each.streams]
    assert not client.request.body.rest_begun, "nothing is sent before the engine has taken the WebSocket"
    first.streams[0].stream.reset(ErrorCode.REFUSED, "no slot")
    fleet.settle()
    assert len(other.streams) == 1
    assert not client.settled


def test_an_engine_that_answers_otherwise_is_sent_the_end_of_the_request() -> None:
    fleet = Fleet()
    one = agent(fleet, "a", upgrades=True)
    client = fleet.submit(asking(fleet))
    stream = one.streams[0]
    assert not stream.body_ended
    stream.stream.send_head(ResponseHead(403, ()))
    fleet.settle()
    assert stream.body_ended
    stream.stream.send_data(b"no")
    stream.stream.end()
    fleet.settle()
    assert client.response.status == 403
    client.response.abort()


def test_a_socket_on_which_nothing_is_said_for_long_stays_open() -> None:
    fleet = Fleet()
    one = agent(fleet, "a", upgrades=True)
    request = asking(fleet)
    request.body.rest = None
    client = fleet.submit(request)
    one.streams[0].stream.send_head(ResponseHead(101, ()))
    fleet.settle()
    assert client.response.status == 101
    fleet.advance(LONG_S)
    assert one.streams[0].reset_code is None
    client.response.abort()
    fleet.settle()
    assert one.streams[0].reset_code is ErrorCode.CANCELLED


def test_progress_reaches_whoever_asked_and_is_counted() -> None:
    fleet = Fleet()
    one = fleet.connect("a", DeploymentState("d", "m", routes=("chat",), slots=2))
    heard: list[Progress] = []
    request = fleet.request()
    request.on_progress = heard.append
    fleet.submit(request)
    fleet.submit()
    for stream in one.streams:
        stream.stream.send_progress(Progress(0.5, "half"))
    fleet.settle()
    assert heard == [Progress(0.5, "half")]
    assert fleet.metrics.registry.get_sample_value("trunkline_progress_reports_total", {"model": "m"}) == 2
