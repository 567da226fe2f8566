"""Which routes are translated, and how what cannot be is refused."""

import pytest

from agent.engines.dialects.dialect import Untranslatable, refuse, translated_routes, with_translated
from agent.engines.dialects.table import DIALECTS


def test_an_engine_with_chat_only_gains_both_other_dialects() -> None:
    gained = translated_routes(("chat", "any"), (), DIALECTS)
    assert gained == ("messages", "responses")
    routes, lacks = with_translated(("chat", "any"), (), gained)
    assert routes == ("chat", "any", "messages", "responses")
    assert lacks == ("messages/v1/messages/count_tokens",)


def test_what_an_engine_speaks_itself_is_not_translated() -> None:
    assert translated_routes(("chat", "messages", "responses"), (), DIALECTS) == ()
    assert translated_routes(("chat", "messages", "responses"), ("messages",), DIALECTS) == ("messages",)


def test_an_engine_without_chat_gains_nothing() -> None:
    assert translated_routes(("embeddings",), (), DIALECTS) == ()
    assert translated_routes(("chat",), ("chat",), DIALECTS) == ()


def test_members_without_words_are_refused_by_name_and_harmless_ones_are_not() -> None:
    refuse({"a": None, "b": False}, {"a": (), "b": (False,)}, "/v1/x")
    with pytest.raises(Untranslatable, match="/v1/x") as caught:
        refuse({"a": 1}, {"a": ()}, "/v1/x")
    assert caught.value.param == "a"
