"""What models can do, as engines write it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engines.http.capabilities import (
    NOTHING_SAID,
    ModelDescription,
    capabilities_in,
    capabilities_of,
    contexts_in,
    facts_of_kserve,
    facts_of_llama_cpp,
    facts_of_ollama,
    facts_of_sglang,
    facts_of_tgi,
)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (["completion", "tools", "tools"], ("completion", "tools")),
        ({"vision": True, "trained_for_tool_use": False}, ("vision",)),
        ({"image_input": {"supported": True}, "batch": {"supported": False}}, ("image_input",)),
        (["two words", "", 7, None, "x" * 33], ()),
        ("tools", ()),
        (None, ()),
    ],
)
def test_each_shape_is_read(said: object, found: tuple[str, ...]) -> None:
    assert capabilities_of({"capabilities": said}) == found


def test_a_model_is_known_by_each_of_its_names() -> None:
    document = {
        "models": [{"name": "m.gguf", "model": "m", "capabilities": ["completion"]}],
        "data": [{"id": "n", "capabilities": ["tools"]}, {"id": "o"}],
    }
    assert capabilities_in(document) == {"n": ("tools",), "m.gguf": ("completion",), "m": ("completion",)}


def test_of_two_that_say_something_of_a_model_all_words_and_the_shorter_context_count() -> None:
    found = ModelDescription(("tools", "vision"), 8192).joined(ModelDescription(("vision", "audio"), 4096))
    assert found == ModelDescription(("tools", "vision", "audio"), 4096)
    assert NOTHING_SAID.joined(ModelDescription((), 4096)).joined(NOTHING_SAID) == ModelDescription((), 4096)


def test_ollama_says_a_context_only_where_the_models_file_has_one() -> None:
    shown = {"capabilities": ["completion"], "model_info": {"llama.context_length": 131072}}
    assert facts_of_ollama(shown) == ModelDescription(("completion",))
    shown["parameters"] = 'stop    "<|im_end|>"\nnum_ctx                        16384\ntemperature 1'
    assert facts_of_ollama(shown) == ModelDescription(("completion",), 16384)
    loaded = {"models": [{"name": "m:latest", "model": "m:latest", "context_length": 4096}, {"name": "n"}]}
    assert contexts_in(loaded) == {"m:latest": 4096}


def test_llama_cpp_says_what_its_model_and_its_template_take() -> None:
    props = {
        "default_generation_settings": {"n_ctx": 8192},
        "modalities": {"vision": True, "audio": False},
        "chat_template_caps": {"supports_tools": True},
    }
    assert facts_of_llama_cpp(props) == ModelDescription(("vision", "tools"), 8192)
    assert facts_of_llama_cpp({"modalities": None, "default_generation_settings": {"n_ctx": 0}}) == (
        NOTHING_SAID
    )


def test_sglang_tgi_and_servers_of_kserve_say_it_their_way() -> None:
    said = {"is_generation": True, "has_image_understanding": True, "tool_call_parser": "qwen25"}
    assert facts_of_sglang(said | {"context_length": 32768, "reasoning_parser": None}) == (
        ModelDescription(("completion", "vision", "tools"), 32768)
    )
    assert facts_of_sglang({"is_generation": False}) == ModelDescription(("embedding",))
    assert facts_of_tgi({"max_total_tokens": 2048}) == ModelDescription((), 2048)
    assert facts_of_kserve({"platform": "onnxruntime_onnx"}) == ModelDescription(("onnxruntime_onnx",))
    assert facts_of_kserve({"platform": ""}) == facts_of_kserve(None) == NOTHING_SAID


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "models", "id", "capabilities", "supported"]), inner)
    ),
    max_leaves=10,
)


@given(json_values)
def test_whatever_an_engine_writes_is_read(document: Any) -> None:
    assert all(name and words for name, words in capabilities_in(document).items() if name)
    assert isinstance(capabilities_of(document), tuple)
    assert all(contexts_in(document).values())
    for read in (facts_of_ollama, facts_of_kserve):
        assert isinstance(read(document), ModelDescription)
    for read_one in (facts_of_llama_cpp, facts_of_sglang, facts_of_tgi):
        assert isinstance(read_one(document if isinstance(document, dict) else {}), ModelDescription)
