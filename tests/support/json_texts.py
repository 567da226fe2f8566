"""JSON values as Hypothesis makes them, and the ways in which people write them."""

import json
from typing import Any

from hypothesis import strategies as st

texts = st.text(st.characters(exclude_categories=["Cs"]))


def keys(*likely: str) -> st.SearchStrategy[str]:
    """Any text, and now and then a likely name or what looks like JSON."""
    return texts | st.sampled_from([*likely, '"', "\\", ":{}[],"])


def values(names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
        max_leaves=12,
    )


@st.composite
def written(draw: st.DrawFn, value: Any) -> bytes:
    """``value`` as JSON in one of the ways people write it."""
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.none() | st.integers(0, 3)),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])),
    )
    return (draw(st.sampled_from(["", " ", "\n\t"])) + text).encode()
