"""Anthropic's Python SDK. All its checks are about ``/v1/messages``."""

from typing import Any

from anthropic import Anthropic
from checks import FACTS, QUESTION, SYSTEM, WEATHER, WORDS, is_weather, run, same
from pydantic import BaseModel

client = Anthropic(base_url=FACTS["url"], api_key=FACTS["key"], max_retries=0)
MODEL = FACTS["model"]
TOOL: Any = {"name": "weather", "description": "The weather.", "input_schema": WEATHER}


class Weather(BaseModel):
    city: str
    celsius: int


def asked(text: str, **more: Any) -> Any:
    said = [{"role": "user", "content": text}]
    return {"model": MODEL, "max_tokens": 300, "system": SYSTEM, "messages": said, **more}


def messages() -> None:
    answer = client.messages.create(**asked(WORDS))
    same(answer.content[0].text, WORDS)
    assert answer.usage.output_tokens > 0
    assert client.models.retrieve(MODEL).id == MODEL
    counted = client.messages.count_tokens(model=MODEL, system=SYSTEM, messages=asked(WORDS)["messages"])
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def stream() -> None:
    with client.messages.stream(**asked(WORDS)) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    same(text, WORDS)
    assert text == final.content[0].text
    assert final.usage.output_tokens > 0


def tools() -> None:
    choice = {"type": "tool", "name": "weather"}
    first = client.messages.create(**asked(QUESTION, tools=[TOOL], tool_choice=choice))
    (call,) = [block for block in first.content if block.type == "tool_use"]
    is_weather(call.input)
    assert first.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "7 degrees"}
    more = [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    request = asked(QUESTION, tools=[TOOL], tool_choice={"type": "none"})
    second = client.messages.create(**request | {"messages": request["messages"] + more})
    same(second.content[0].text, "7 degrees")
    with client.messages.stream(**asked(QUESTION, tools=[TOOL], tool_choice=choice)) as events:
        (streamed,) = [block for block in events.get_final_message().content if block.type == "tool_use"]
    is_weather(streamed.input)


def structured() -> None:
    answer = client.messages.parse(**asked(QUESTION, output_format=Weather))
    assert isinstance(answer.parsed_output, Weather)
    form = {"format": {"type": "json_schema", "schema": WEATHER}}
    plain = client.messages.create(**asked(QUESTION, output_config=form))
    is_weather(plain.content[0].text)


run(messages=messages, stream=stream, tools=tools, structured=structured)
