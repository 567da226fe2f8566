"""What one look at an engine makes of what it answers."""

import asyncio
from typing import Any

import pytest

from agent.engines.backend import (
    BackendBusy,
    BackendFailed,
    BackendTimeout,
    BackendUnreachable,
)
from agent.engines.http.kind import WhileBusy
from agent.engines.http.load import SLICE_BYTES
from agent.engines.http.probe import BLOCKED_PATIENCE, EngineView, Prober
from agent.engines.settings import EngineSettings
from shared.protocol.messages import DeploymentStatus
from tests.agent.support.fake_engine import FakeEngine, look

MODELS = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}
METRICS = b'vllm:num_requests_running{model_name="m"} 3\nvllm:num_requests_waiting{model_name="m"} 1\n'


async def test_a_well_engine_is_seen_with_all_it_says() -> None:
    view = await look({"/v1/models": MODELS, "/health": b"", "/metrics": METRICS})
    (deployment,) = view.deployments
    assert (deployment.id, deployment.model, deployment.status) == ("e/m", "m", DeploymentStatus.LOADED)
    assert (deployment.context_tokens, deployment.running, deployment.waiting) == (4096, 3, 1)
    assert (view.kind.name, deployment.slots, view.gone) == ("vllm", 256, False)
    assert {"chat", "any"} <= set(deployment.routes)


async def test_of_many_models_those_that_the_settings_name_are_offered() -> None:
    listed = {"data": [{"id": f"m{number}"} for number in range(300)] + [{"id": "a b"}]}
    view = await look({"/v1/models": listed}, models=("m250",))
    assert (view.models(), view.left_out) == (("m250",), ())


@pytest.mark.parametrize(
    ("owner", "continues"),
    [
        ("vllm", {"chat": "final_message", "completions": "prompt"}),
        ("sglang", {"chat": "final_message", "completions": "prompt"}),
        ("llamacpp", {"chat": "prefill", "messages": "prefill", "completions": "prompt"}),
        (
            "trunkline",
            {
                **dict.fromkeys(("chat", "messages", "responses"), "final_message"),  # two are translated
                "completions": "prompt",
            },
        ),
        ("library", {}),
        ("organization_owner", {}),
        ("somebody", {}),
    ],
)
async def test_how_an_engine_goes_on_with_an_answer_is_known_of_its_kind(
    owner: str, continues: dict[str, str]
) -> None:
    view = await look({"/v1/models": {"data": [{"id": "m", "owned_by": owner}]}})
    assert view.deployments[0].continues == continues


async def test_an_engine_goes_on_only_on_routes_it_has_unless_the_settings_say_so() -> None:
    models = {"data": [{"id": "m", "owned_by": "trunkline", "routes": ["completions"]}]}
    assert (await look({"/v1/models": models})).deployments[0].continues == {"completions": "prompt"}
    assert (await look({"/v1/models": models}, continues={})).deployments[0].continues == {}
    ways = {"chat": "prefill"}
    assert (await look({"/v1/models": models}, continues=ways)).deployments[0].continues == ways


async def test_slots_come_from_the_settings_then_the_engine_then_its_kind() -> None:
    llama = {"/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]}, "/props": {"total_slots": 2}}
    assert (await look(llama, slots=5)).deployments[0].slots == 5
    assert (await look(llama)).deployments[0].slots == 2
    assert (await look({**llama, "/props": 404})).deployments[0].slots == 4


async def test_only_the_models_named_in_the_settings_are_offered() -> None:
    models = {"data": [{"id": "a"}, {"id": "b"}]}
    view = await look({"/v1/models": models}, models=("b", "c"))
    assert [deployment.model for deployment in view.deployments] == ["b"]


async def test_what_an_engine_does_not_have_is_not_asked_for_again() -> None:
    engine = FakeEngine({"/v1/models": MODELS})
    prober = Prober(EngineSettings(url="http://e"), engine.ask)
    view = await prober.look(EngineView())
    assert set(engine.asked) == {"/v1/models", "/openapi.json", "/health", "/metrics"}
    engine.asked.clear()
    view = await prober.look(view)
    assert engine.asked == ["/v1/models"]
    engine.answers = {"/v1/models": BackendUnreachable("down")}
    view = await prober.look(view)
    engine.answers = {"/v1/models": MODELS, "/health": b""}
    await prober.look(view)
    assert "/health" in engine.asked


async def test_an_engine_that_is_gone_leaves_its_models_as_failed_until_it_is_back() -> None:
    seen = await look({"/v1/models": MODELS})
    gone = await look({"/v1/models": BackendUnreachable("refused")}, seen)
    assert gone.gone
    assert (gone.deployments[0].status, gone.deployments[0].reason) == (DeploymentStatus.FAILED, "refused")
    back = await look({"/v1/models": MODELS}, gone)
    assert (back.deployments[0].status, back.deployments[0].reason) == (DeploymentStatus.LOADED, "")


async def test_one_late_answer_is_forgiven_and_the_second_is_not() -> None:
    seen = await look({"/v1/models": MODELS})
    late = await look({"/v1/models": BackendTimeout("slow")}, seen)
    assert not late.gone
    assert late.deployments == seen.deployments
    assert (await look({"/v1/models": BackendTimeout("slow")}, late)).gone
    assert (await look({"/v1/models": MODELS}, late)).late == 0


async def test_an_answer_that_is_no_list_of_models_says_what_is_wrong() -> None:
    for answer, words in [
        (401, "api_key"),
        (404, "answers 404"),
        (503, "not ready"),
        (b"<html>", "something else"),
        ({"models": []}, "something else"),
        (BackendFailed("no HTTP"), "no HTTP"),
    ]:
        view = await look({"/v1/models": answer})
        assert view.gone
        assert words in view.reason
        assert view.deployments == ()


async def test_an_unwell_engine_is_failed_and_a_loading_one_loading() -> None:
    unwell = await look({"/v1/models": MODELS, "/health": 503})
    assert unwell.deployments[0].status is DeploymentStatus.FAILED
    assert "not well" in unwell.deployments[0].reason
    loading = await look({"/v1/models": MODELS, "/health": (503, b'{"error":{"message":"Loading model"}}')})
    assert loading.deployments[0].status is DeploymentStatus.LOADING


async def test_a_question_that_fails_in_passing_changes_nothing() -> None:
    view = await look({"/v1/models": MODELS, "/health": BackendTimeout("x"), "/metrics": BackendTimeout("x")})
    assert view.deployments[0].status is DeploymentStatus.LOADED
    assert view.has_health
    assert view.has_metrics


async def test_an_engine_that_was_well_and_answers_500_is_not() -> None:
    well = await look({"/v1/models": MODELS, "/health": b""})
    (deployment,) = (await look({"/v1/models": MODELS, "/health": 500}, well)).deployments
    assert deployment.status is DeploymentStatus.FAILED
    assert deployment.reason == "the engine is not well (/health answers 500)"
    again = await look({"/v1/models": MODELS, "/health": b""}, well)
    assert again.deployments[0].status is DeploymentStatus.LOADED


async def test_an_engine_that_never_knew_of_health_is_not_judged_by_it() -> None:
    first = await look({"/v1/models": MODELS, "/health": 500})
    second = await look({"/v1/models": MODELS, "/health": 500}, first)
    assert not second.has_health
    assert second.deployments[0].status is DeploymentStatus.LOADED


PYTHON = {"data": [{"id": "m", "owned_by": "me"}]}


async def test_an_engine_that_questions_interrupt_is_asked_for_its_models_once() -> None:
    engine = FakeEngine({"/v1/models": PYTHON})
    prober = Prober(EngineSettings(url="http://e", name="e"), engine.ask)
    view = await prober.look(EngineView())
    assert (view.kind.name, view.deployments[0].slots) == ("llama-cpp-python", 1)
    for _ in range(5):
        view = await prober.look(view)
    assert engine.asked.count("/v1/models") == 1
    assert engine.asked[-1] == "/health", "which it does not have"
    engine.answers = {"/health": BackendUnreachable("refused")}
    gone = await prober.look(view)
    assert (gone.gone, gone.deployments[0].status) == (True, DeploymentStatus.FAILED)
    engine.answers = {"/v1/models": {"data": [{"id": "other", "owned_by": "me"}]}}
    assert (await prober.look(gone)).models() == ("other",)


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics", "/info", "/openapi.json"])
async def test_a_look_that_requests_overtake_changes_nothing(path: str) -> None:
    engine = FakeEngine({"/v1/models": {"data": [{"id": "m"}]}})
    prober = Prober(EngineSettings(url="http://e", name="e"), engine.ask)
    gone = EngineView(gone=True)
    engine.answers[path] = BackendBusy("requests run")
    assert await prober.look(gone) is gone


async def test_one_that_may_be_working_for_others_may_be_late_more_often() -> None:
    view = await look({"/v1/models": {"data": [{"id": "m"}]}})
    for _ in range(BLOCKED_PATIENCE - 1):
        view = await look({"/v1/models": BackendTimeout("slow")}, view)
        assert not view.gone
    assert (await look({"/v1/models": BackendTimeout("slow")}, view)).gone


async def test_one_that_tells_of_its_load_is_asked_for_it_while_it_works() -> None:
    unknown = {"/v1/models": {"data": [{"id": "m"}]}}
    assert (await look(unknown)).while_busy is WhileBusy.UNKNOWN
    assert (await look(unknown | {"/metrics": METRICS})).while_busy is WhileBusy.ANSWERS


async def test_transformers_serve_is_known_by_its_paths() -> None:
    openapi: dict[str, Any] = {"paths": {"/load_model": {}, "/reset": {}, "/v1/chat/completions": {}}}
    view = await look({"/v1/models": {"data": [{"id": "a/m", "owned_by": "a"}]}, "/openapi.json": openapi})
    assert (view.kind.name, view.deployments[0].slots) == ("transformers", 1)
    assert view.deployments[0].continues == {}


async def test_what_is_no_engine_is_told_from_one_that_has_a_trouble() -> None:
    for answer, foreign in [
        (404, True),
        (302, True),
        (b"<html>", True),
        (503, False),
        (500, False),
        (401, False),
    ]:
        assert (await look({"/v1/models": answer})).foreign is foreign
    assert not (await look({"/v1/models": BackendUnreachable("refused")})).foreign


async def test_an_engine_without_a_list_of_models_serves_those_named_while_its_health_is_good() -> None:
    named: dict[str, Any] = {"models": ("a", "b"), "health": "/ping"}
    view = await look({"/ping": b"pong"}, **named)
    assert [(d.id, d.status) for d in view.deployments] == [
        ("e/a", DeploymentStatus.LOADED),
        ("e/b", DeploymentStatus.LOADED),
    ]
    lost = await look({"/ping": 500}, view, **named)
    assert (lost.gone, lost.foreign) == (True, False)
    assert lost.reason == "the engine is not well (/ping answers 500)"
    assert {d.status for d in lost.deployments} == {DeploymentStatus.FAILED}
    back = await look({"/ping": 204}, lost, **named)
    assert {d.status for d in back.deployments} == {DeploymentStatus.LOADED}


async def test_an_engine_with_a_health_path_is_not_asked_for_models_or_another_health() -> None:
    engine = FakeEngine({"/ping": b"", "/health": 503})
    prober = Prober(EngineSettings(url="http://e", name="e", models=("m",), health="/ping"), engine.ask)
    view = await prober.look(await prober.look(EngineView()))
    assert view.models() == ("m",)
    assert "/v1/models" not in engine.asked
    assert "/health" not in engine.asked


@pytest.mark.parametrize(
    ("answer", "reason", "loading"),
    [
        (401, "wants another api_key", False),
        (404, "answers 404): if it has no such list, name its models", False),
        (b"<html>", "answers with something else): if it has no such list", False),
        (500, "is not well (/v1/models answers 500)", False),
        (503, "is not ready", False),
        ((503, b"Loading model"), "is loading its model", True),
    ],
)
async def test_why_an_engine_shows_no_models_is_said(answer: Any, reason: str, loading: bool) -> None:
    view = await look({"/v1/models": answer})
    assert reason in view.reason
    assert (view.gone, view.loading) == (True, loading)
    assert not (await look({"/v1/models": MODELS}, view)).loading


OPENAPI: dict[str, Any] = {
    "paths": {"/v1/rerank": {"post": {}}, "/v1/embeddings": {"post": {}}, "/v1/chat/completions": {"get": {}}}
}


async def test_routes_come_from_the_engines_own_description() -> None:
    view = await look({"/v1/models": MODELS, "/openapi.json": OPENAPI})
    assert view.deployments[0].routes == ("embeddings", "rerank", "any")
    assert set(view.deployments[0].lacks) == {"rerank/rerank", "rerank/v2/rerank"}


@pytest.mark.parametrize("described", [404, {"paths": {"/predict": {"post": {}}}}, b"<html>", {"paths": []}])
async def test_routes_come_from_the_kind_where_there_is_no_description_of_known_paths(described: Any) -> None:
    view = await look({"/v1/models": MODELS, "/openapi.json": described})
    assert view.deployments[0].routes == view.kind.routes
    assert view.deployments[0].lacks == ()


async def test_routes_that_an_engine_lists_with_its_models_count_before_its_description() -> None:
    models = {"data": [{"id": "m", "routes": ["chat"]}]}
    view = await look({"/v1/models": models, "/openapi.json": OPENAPI})
    assert view.deployments[0].routes == ("chat", "messages", "responses")
    assert view.deployments[0].lacks == ()
    needs = ("messages", "messages/v1/messages/count_tokens", "responses")
    assert view.deployments[0].translated == view.translated["e/m"] == needs


async def test_an_engine_of_no_known_kind_is_stateful_unless_the_settings_say_otherwise() -> None:
    unknown = {"/v1/models": {"data": [{"id": "m"}]}}
    assert (await look(unknown)).deployments[0].stateful
    assert not (await look(unknown, stateful=False)).deployments[0].stateful
    assert not (await look({"/v1/models": MODELS})).deployments[0].stateful
    assert (await look({"/v1/models": MODELS}, stateful=True)).deployments[0].stateful


@pytest.mark.parametrize("entries", [b"{}," * 20_000, b'"",' * 40_000, b'"%b",' % (b"x" * 2**20)])
async def test_a_list_of_models_that_would_stop_the_event_loop_is_not_read(entries: bytes) -> None:
    view = await look({"/v1/models": b'{"data":[' + entries + b"0]}"})
    assert view.gone
    assert "too long" in view.reason


async def test_others_have_turns_while_a_long_page_of_metrics_is_read() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    page = METRICS + b"x 1\n" * (50 * SLICE_BYTES // 4)
    view = await look({"/v1/models": MODELS, "/metrics": page})
    counting.cancel()
    assert view.deployments[0].running == 3
    assert turns >= 50
