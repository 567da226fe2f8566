"""Tokens are counted by what the engine says of a chat completion of one token."""

import pytest

from agent.engines.dialects.chat import NoChatAnswer, answer_of
from agent.engines.dialects.dialect import Untranslatable
from agent.engines.dialects.messages_count import CountWriter, chat_request

REQUEST = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "system": "be brief"}


def test_the_request_is_that_of_a_message_of_one_token() -> None:
    chat = chat_request(REQUEST | {"stream": True, "max_tokens": 500, "tools": [{"name": "t"}]})
    assert chat["max_tokens"] == 1
    assert "stream" not in chat
    assert chat["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert chat["tools"][0]["function"]["name"] == "t"


def test_what_no_message_could_be_is_refused() -> None:
    with pytest.raises(Untranslatable):
        chat_request({"model": "m"})


def test_the_count_is_the_engines_with_what_it_had_cached() -> None:
    usage = {"prompt_tokens": 17, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}}
    answer = answer_of({"choices": [{"message": {"content": "x"}}], "usage": usage})
    assert CountWriter(REQUEST).whole(answer) == {"input_tokens": 17}


def test_an_engine_that_tells_no_usage_has_no_count() -> None:
    answer = answer_of({"choices": [{"message": {"content": "x"}}]})
    with pytest.raises(NoChatAnswer, match="does not say"):
        CountWriter(REQUEST).whole(answer)


def test_a_stream_is_no_count() -> None:
    with pytest.raises(NoChatAnswer):
        CountWriter(REQUEST).events()
