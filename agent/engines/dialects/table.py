"""Every dialect that is translated."""

from collections.abc import Mapping

from agent.engines.dialects import (
    messages_answer,
    messages_count,
    messages_request,
    responses_answer,
    responses_request,
)
from agent.engines.dialects.dialect import Translation
from shared.protocol.routes import Route

MESSAGES = Translation(
    Route.MESSAGES.value,
    messages_request.PATH,
    messages_request.chat_request,
    messages_answer.MessageWriter,
    messages_answer.error_body,
)
COUNT_TOKENS = Translation(
    Route.MESSAGES.value,
    messages_count.PATH,
    messages_count.chat_request,
    messages_count.CountWriter,
    messages_answer.error_body,
)
RESPONSES = Translation(
    Route.RESPONSES.value,
    responses_request.PATH,
    responses_request.chat_request,
    responses_answer.ResponseWriter,
    responses_answer.error_body,
)

DIALECTS: Mapping[str, Translation] = {each.path: each for each in (MESSAGES, COUNT_TOKENS, RESPONSES)}
"""By their paths."""
