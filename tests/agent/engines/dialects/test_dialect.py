"""Which routes are translated, and how what cannot be is refused."""

import pytest

from agent.engines.dialects.dialect import Untranslatable, refuse, translated_needs, with_translated
from agent.engines.dialects.table import DIALECTS

COUNT = "messages/v1/messages/count_tokens"


def test_an_engine_with_chat_only_gains_both_other_dialects() -> None:
    gained = translated_needs(("chat", "any"), (), DIALECTS)
    assert gained == ("messages", COUNT, "responses")
    routes, lacks = with_translated(("chat", "any"), (), gained)
    assert routes == ("chat", "any", "messages", "responses")
    assert lacks == ()


def test_other_paths_of_a_route_that_is_gained_are_not_there() -> None:
    only = {path: each for path, each in DIALECTS.items() if each.need != COUNT}
    gained = translated_needs(("chat",), (), only)
    assert with_translated(("chat",), ("x",), gained) == (("chat", "messages", "responses"), ("x", COUNT))


def test_what_an_engine_speaks_itself_is_not_translated() -> None:
    there = ("chat", "messages", "responses")
    assert translated_needs(there, (), DIALECTS) == ()
    assert translated_needs(there, ("messages",), DIALECTS) == ("messages",)
    assert translated_needs(there, (COUNT,), DIALECTS) == (COUNT,)
    assert with_translated(there, (COUNT, "x"), (COUNT,)) == (there, ("x",))


def test_an_engine_without_chat_gains_nothing() -> None:
    assert translated_needs(("embeddings",), (), DIALECTS) == ()
    assert translated_needs(("chat",), ("chat",), DIALECTS) == ()


def test_members_without_words_are_refused_by_name_and_harmless_ones_are_not() -> None:
    refuse({"a": None, "b": False}, {"a": (), "b": (False,)}, "/v1/x")
    with pytest.raises(Untranslatable, match="/v1/x") as caught:
        refuse({"a": 1}, {"a": ()}, "/v1/x")
    assert caught.value.param == "a"
