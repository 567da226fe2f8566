"""Tools in a chat whose template knows none."""

from typing import Any

from agent.engines.torch.tool_prompt import tools_in_words

ADD = {"type": "function", "function": {"name": "add"}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
HELLO = {"role": "user", "content": "hello"}


def test_tools_are_in_the_systems_message() -> None:
    told = tools_in_words([{"role": "system", "content": "Be kind."}, HELLO], [ADD])
    assert told[0]["content"].startswith("Be kind.\n\nYou may call functions.")
    assert '{"type":"function","function":{"name":"add"}}' in told[0]["content"]
    assert told[1:] == [HELLO]
    assert [message["role"] for message in tools_in_words([HELLO], [ADD])] == ["system", "user"]


def test_calls_and_results_are_texts() -> None:
    messages: list[dict[str, Any]] = [
        HELLO,
        {"role": "assistant", "content": "Well.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    assert tools_in_words(messages, []) == [
        HELLO,
        {
            "role": "assistant",
            "content": 'Well.\n<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call>',
        },
        {"role": "user", "content": "<tool_response>\n2\n</tool_response>"},
    ]
