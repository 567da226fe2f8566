"""What models can do, as engines write it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engines.http.capabilities import capabilities_in, capabilities_of


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
