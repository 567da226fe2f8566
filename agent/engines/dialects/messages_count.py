"""Anthropic's ``/v1/messages/count_tokens`` by the usage that an engine tells of a chat completion. Pure.

The engine reads the prompt as it would for an answer, with its own template and tokenizer, and writes one
token, so the count is the engine's own. What it read is cached for the request that follows, where the engine
keeps prefixes.
"""

from agent.engines.dialects import messages_request
from agent.engines.dialects.chat import NoChatAnswer
from agent.engines.dialects.dialect import ChatAnswer, EventWriter, JsonObject

PATH = "/v1/messages/count_tokens"

NOT_TOLD = "the engine does not say how many tokens a prompt has"


def chat_request(request: JsonObject) -> JsonObject:
    """Raises :class:`agent.engines.dialects.dialect.Untranslatable`."""
    counted = {name: value for name, value in request.items() if name not in ("stream", "max_tokens")}
    return messages_request.chat_request(counted) | {"max_tokens": 1}


class CountWriter:
    """Implements :class:`agent.engines.dialects.dialect.AnswerWriter`."""

    def __init__(self, request: JsonObject) -> None:
        pass

    def whole(self, answer: ChatAnswer) -> JsonObject:
        """Raises :class:`NoChatAnswer` where the engine tells no usage."""
        if not answer.usage.prompt:
            raise NoChatAnswer(NOT_TOLD)
        return {"input_tokens": answer.usage.prompt}

    def events(self) -> EventWriter:
        """Raises :class:`NoChatAnswer`: no stream was asked for."""
        raise NoChatAnswer("the engine sent a stream in place of an answer in one piece")
