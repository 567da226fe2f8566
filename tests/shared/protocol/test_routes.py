"""What each known path asks of an engine."""

import pickle

import pytest

from shared.protocol.messages import AgentState, AgentStatus, DeploymentState, ResponseHead
from shared.protocol.routes import LACKED, PATHS, ROUTES, Route, need_of, need_of_path, offered, route_of


@pytest.mark.parametrize(
    ("path", "need"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/chat/completions?api-version=1", "chat"),
        ("/v1/rerank", "rerank"),
        ("/v2/rerank", "rerank/v2/rerank"),
        ("/detokenize", "tokenize/detokenize"),
        ("/v1/audio/speech", "audio/v1/audio/speech"),
        ("/api/chat", "ollama/api/chat"),
        ("/history/1", None),
    ],
)
def test_a_path_is_a_need_of_its_own(path: str, need: str | None) -> None:
    assert need_of_path(path) == need
    assert need is None or route_of(need) in ROUTES


def test_a_route_equals_its_name_and_is_found_by_it() -> None:
    assert [Route(name) for name in ROUTES] == list(Route) == list(ROUTES)
    assert all(pickle.loads(pickle.dumps(route)) is route for route in Route)


def test_no_two_routes_share_a_path() -> None:
    paths = [path for route in Route for path in (route.facts.main, *route.facts.others) if path is not None]
    assert len(paths) == len(set(paths)) == len(PATHS)


def test_every_path_has_a_need_that_no_other_has() -> None:
    assert len({need_of_path(path) for path in PATHS}) == len(PATHS)
    assert len(PATHS) <= LACKED


def test_a_path_of_no_known_end_counts_as_its_route_when_it_is_long() -> None:
    assert need_of("audio", "/v1/audio/voices") == "audio/v1/audio/voices"
    assert need_of("audio", "/v1/audio/" + "x" * 300) == "audio"


def test_an_engine_offers_the_routes_of_its_paths_and_lacks_the_others_of_them() -> None:
    assert offered(["/v1/rerank", "/v1/chat/completions", "/metrics"]) == (
        ("chat", "rerank", "any"),
        ("rerank/rerank", "rerank/v2/rerank"),
    )
    assert offered(["/metrics", "/predict"]) is None


def test_what_is_new_is_written_only_where_it_says_something() -> None:
    plain, lacking = (
        DeploymentState("e/m", "m"),
        DeploymentState("e/m", "m", lacks=("rerank",), stateful=True),
    )
    for state in (AgentState(AgentStatus.READY, (plain,)), AgentState(AgentStatus.READY, (lacking,))):
        assert AgentState.from_payload(state.to_payload()) == state
    assert b"lacks" not in AgentState(AgentStatus.READY, (plain,)).to_payload()
    assert ResponseHead(404, ()).to_payload() == b'{"status":404,"headers":[]}'
    head = ResponseHead(404, (), lacks_path=True)
    assert ResponseHead.from_payload(head.to_payload()) == head
