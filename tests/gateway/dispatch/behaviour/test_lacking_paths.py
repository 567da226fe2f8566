"""Requests for a path that an engine turns out not to have."""

from gateway.domain.errors import NoDeployment, RouteNotSupported
from gateway.domain.request import Request, RequestBody
from shared.protocol.messages import DeploymentState, ResponseHead
from tests.gateway.fleet.fleet import EngineStream, Fleet, deployment


def rerank(fleet: Fleet, path: str = "/v1/rerank", **more: object) -> Request:
    request = fleet.request(route="rerank", streaming=False, **more)  # type: ignore[arg-type]
    request.path = path
    request.need = "rerank" if path == "/v1/rerank" else f"rerank{path}"
    return request


def say_lacking(stream: EngineStream, fleet: Fleet) -> None:
    stream.stream.send_head(ResponseHead(404, (("content-type", "application/json"),), lacks_path=True))
    stream.stream.send_data(b'{"detail":"Not Found"}')
    stream.stream.end()
    fleet.settle()


def answer(stream: EngineStream, fleet: Fleet) -> None:
    stream.stream.send_head(ResponseHead(200, ()))
    stream.stream.send_data(b"{}" * 8192)
    stream.stream.end()
    fleet.settle()


def test_another_engine_is_asked_and_the_first_one_not_again() -> None:
    fleet = Fleet()
    both = [fleet.connect(name, deployment(routes=("rerank",), slots=4)) for name in ("a", "b")]
    client = fleet.submit(rerank(fleet))
    (first,) = [each for each in both if each.streams]
    (other,) = [each for each in both if not each.streams]
    say_lacking(first.streams[0], fleet)
    assert not client.settled
    answer(other.streams[0], fleet)
    assert client.response.status == 200
    client.response.abort()
    for _ in range(4):
        fleet.submit(rerank(fleet))
    assert (len(first.streams), len(other.streams)) == (1, 5)


def test_where_nobody_has_it_the_client_is_told_so_and_from_then_on_at_once() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(routes=("rerank", "chat"), slots=4))
    client = fleet.submit(rerank(fleet))
    say_lacking(agent.streams[0], fleet)
    assert isinstance(client.error, RouteNotSupported)
    assert "chat" in client.error.message
    assert "/v1/rerank" in client.error.message
    again = fleet.submit(rerank(fleet))
    assert isinstance(again.error, RouteNotSupported)
    assert len(agent.streams) == 1
    assert fleet.submit().exchange is not None  # chat goes on


def test_it_concerns_that_path_alone() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(routes=("rerank",), slots=4))
    client = fleet.submit(rerank(fleet, "/v2/rerank"))
    say_lacking(agent.streams[0], fleet)
    assert isinstance(client.error, RouteNotSupported)
    other = fleet.submit(rerank(fleet))
    answer(agent.streams[1], fleet)
    assert other.response.status == 200
    other.response.abort()


def test_what_an_agent_says_its_engine_lacks_is_not_asked_for() -> None:
    fleet = Fleet()
    lacking = DeploymentState("d", "m", routes=("rerank",), slots=2, lacks=("rerank/v2/rerank", "rerank"))
    agent = fleet.connect("a", lacking)
    for path in ("/v1/rerank", "/v2/rerank"):
        assert isinstance(fleet.submit(rerank(fleet, path)).error, RouteNotSupported)
    assert not agent.streams
    agent.serve(DeploymentState("d", "m", routes=("rerank",), slots=2))
    fleet.settle()
    fleet.submit(rerank(fleet, "/v2/rerank"))
    assert len(agent.streams) == 1


def test_a_deployment_that_names_only_any_takes_every_route_but_what_it_lacks() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", DeploymentState("d", "m", routes=("any",), slots=2, lacks=("rerank",)))
    assert isinstance(fleet.submit(rerank(fleet)).error, RouteNotSupported)
    fleet.submit()
    assert len(agent.streams) == 1


def test_own_paths_beside_routes_do_not_mean_every_route() -> None:
    fleet = Fleet()
    fleet.connect("a", DeploymentState("d", "m", routes=("chat", "any"), slots=2))
    refused = fleet.submit(rerank(fleet))
    assert isinstance(refused.error, RouteNotSupported)


def test_the_kind_of_request_is_named_in_words_of_the_client() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment(routes=("chat",)))
    error = fleet.submit(fleet.request(route="any")).error
    assert isinstance(error, RouteNotSupported)
    assert "/engines/" in error.message
    assert " any" not in error.message


def test_a_body_that_cannot_be_sent_again_is_asked_for_again() -> None:
    fleet = Fleet()
    both = [fleet.connect(name, deployment(routes=("rerank",), slots=4)) for name in ("a", "b")]
    body = RequestBody(b"{}", rest_begun=True)
    client = fleet.submit(rerank(fleet, body=body))
    (first,) = [each for each in both if each.streams]
    say_lacking(first.streams[0], fleet)
    assert isinstance(client.error, NoDeployment)
