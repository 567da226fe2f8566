"""Tools in words, for models whose chat template has no place for them. Pure.

The words and marks are those of Hermes' models, which many others were trained on.
"""

from collections.abc import Sequence
from typing import Any

import orjson

PlainMessage = dict[str, Any]
"""A message as chat templates take it."""

_WORDS = (
    "You may call functions. Their signatures are within <tools></tools>:\n<tools>\n{tools}\n</tools>\n"
    "For each call, write its name and arguments as JSON within <tool_call></tool_call>:\n"
    '<tool_call>\n{{"name": <function-name>, "arguments": <arguments-object>}}\n</tool_call>'
)


def tools_in_words(messages: Sequence[PlainMessage], tools: Sequence[Any]) -> list[PlainMessage]:
    """The messages with the tools in the system's message, and with calls and their results as texts."""
    told = [_in_words(message) for message in messages]
    if not tools:
        return told
    words = _WORDS.format(tools="\n".join(orjson.dumps(tool).decode() for tool in tools))
    if told and told[0]["role"] == "system":
        return [told[0] | {"content": f"{told[0]['content']}\n\n{words}"}, *told[1:]]
    return [{"role": "system", "content": words}, *told]


def _in_words(message: PlainMessage) -> PlainMessage:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [
        f"<tool_call>\n{orjson.dumps(call['function']).decode()}\n</tool_call>"
        for call in message["tool_calls"]
    ]
    return {"role": message["role"], "content": "\n".join([*filter(None, [message["content"]]), *calls])}
