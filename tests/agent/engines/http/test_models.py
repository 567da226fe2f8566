"""What engines say of their models, and which kind of engine says it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engines.http.kind import GENERIC, LLAMA_CPP, OLLAMA, TGI, VLLM, kind_of, slots_from
from agent.engines.http.models import LISTED, MODELS, EngineModel, read_models
from shared.protocol.messages import DeploymentStatus

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "id", "meta", "slots", "status"]), inner)
    ),
    max_leaves=10,
)


def test_the_built_in_engine_says_everything() -> None:
    entry = {
        "id": "demo",
        "owned_by": "trunkline",
        "max_model_len": 512,
        "routes": ["chat", "completions"],
        "slots": 4,
        "version": "2",
        "status": "loading",
        "reason": "reading weights",
        "capabilities": ["tools"],
    }
    assert read_models({"data": [entry]}) == (
        EngineModel(
            "demo",
            "trunkline",
            512,
            ("chat", "completions"),
            4,
            "2",
            DeploymentStatus.LOADING,
            "reading weights",
            ("tools",),
        ),
    )


@pytest.mark.parametrize(
    ("entry", "context"),
    [
        ({"max_model_len": 8192}, 8192),
        ({"meta": {"n_ctx_train": 131072}}, 131072),
        ({"meta": {"n_ctx_train": 131072, "n_ctx": 4096}}, 4096),
        ({"max_context_length": 32768, "loaded_context_length": 4096}, 4096),
        ({"max_model_len": "8192"}, None),
        ({"max_model_len": True}, None),
        ({"meta": None}, None),
        ({}, None),
    ],
)
def test_the_context_length_is_found_where_each_engine_writes_it(
    entry: dict[str, Any], context: int | None
) -> None:
    models = read_models({"data": [{"id": "m", **entry}]})
    assert models is not None
    assert models[0].context_tokens == context


def test_models_that_cannot_be_named_are_left_out_and_each_is_listed_once() -> None:
    ids = ["a", "a", "b c", "", "x" * 300, 7, None, "org/model:7b"]
    models = read_models({"data": [{"id": identity} for identity in ids] + ["z"]})
    assert models is not None
    assert [model.id for model in models] == ["a", "org/model:7b"]


def test_a_very_long_list_is_cut() -> None:
    models = read_models({"data": [{"id": f"m{number}"} for number in range(1000)]})
    assert models is not None
    assert len(models) == MODELS


def test_models_that_are_named_are_found_however_many_others_there_are() -> None:
    models = read_models({"data": [{"id": f"m{number}"} for number in range(1000)]}, ("m900", "m3", "m1000"))
    assert [model.id for model in models or ()] == ["m3", "m900"]


@given(json_values)
def test_no_document_is_too_strange(document: Any) -> None:
    read_models(document)
    read_models({"data": [document, {"id": "m", "meta": document, "routes": document, "slots": document}]})
    slots_from(document, LLAMA_CPP)
    kind_of("x", document)


@pytest.mark.parametrize(
    ("owner", "info", "kind"),
    [
        ("vllm", None, VLLM),
        ("llamacpp", None, LLAMA_CPP),
        ("library", None, OLLAMA),
        ("org/model", {"model_id": "org/model", "max_concurrent_requests": 64}, TGI),
        ("somebody", {"name": "x"}, GENERIC),
        ("", None, GENERIC),
    ],
)
def test_the_kind_is_seen_from_the_answers(owner: str, info: Any, kind: object) -> None:
    assert kind_of(owner, info) is kind


def test_slots_are_taken_from_the_engine_where_it_says_them() -> None:
    assert slots_from({"total_slots": 4}, LLAMA_CPP) == 4
    assert slots_from({"max_concurrent_requests": 64}, TGI) == 64
    assert slots_from({"total_slots": 0}, LLAMA_CPP) is None
    assert slots_from({"total_slots": "4"}, LLAMA_CPP) is None
    assert slots_from([], LLAMA_CPP) is None


def test_of_an_endless_list_only_the_beginning_is_looked_at() -> None:
    bad = [{"id": ""}] * LISTED
    assert read_models({"data": [*bad, {"id": "m"}]}) == ()
    models = read_models({"data": [*bad[1:], {"id": "m"}]})
    assert models is not None
    assert [model.id for model in models] == ["m"]
