"""OpenAI's Python SDK."""

from typing import Any

from checks import FACTS, QUESTION, SYSTEM, WEATHER, WORDS, is_vector, is_weather, run, same
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=FACTS["base_url"], api_key=FACTS["key"], max_retries=0)
MODEL = FACTS["model"]
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}}
CHOICE: Any = {"type": "function", "function": {"name": "weather"}}


class Weather(BaseModel):
    city: str
    celsius: int


def messages(text: str) -> Any:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=messages(WORDS), max_tokens=300)
    same(answer.choices[0].message.content or "", WORDS)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def stream() -> None:
    asked = {"model": MODEL, "messages": messages(WORDS), "max_tokens": 300, "temperature": 0}
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
        text = "".join(event.delta for event in events if event.type == "content.delta")
        final = events.get_final_completion()
    same(text, WORDS)
    assert text == final.choices[0].message.content
    assert final.usage is not None
    assert final.usage.completion_tokens > 0
    assert text == client.chat.completions.create(**asked).choices[0].message.content


def tools() -> None:
    asked = {"model": MODEL, "tools": [TOOL], "max_tokens": 300}
    first = client.chat.completions.create(**asked, messages=messages(QUESTION), tool_choice=CHOICE)
    (call,) = first.choices[0].message.tool_calls or ()
    is_weather(call.function.arguments)
    assert call.function.name == "weather"
    result = {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}
    said = [*messages(QUESTION), first.choices[0].message, result]
    second = client.chat.completions.create(**asked, messages=said, tool_choice="none")
    same(second.choices[0].message.content or "", "7 degrees")
    with client.chat.completions.stream(**asked, messages=messages(QUESTION), tool_choice=CHOICE) as events:
        (streamed,) = events.get_final_completion().choices[0].message.tool_calls or ()
    is_weather(streamed.function.arguments)


def structured() -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=messages(QUESTION), response_format=Weather, max_tokens=300
    )
    assert isinstance(answer.choices[0].message.parsed, Weather)
    parsed = client.responses.parse(model=MODEL, input=QUESTION, text_format=Weather, max_output_tokens=300)
    assert isinstance(parsed.output_parsed, Weather)


def responses() -> None:
    asked = {"model": MODEL, "instructions": SYSTEM, "input": WORDS, "max_output_tokens": 300}
    answer = client.responses.create(**asked)
    same(answer.output_text, WORDS)
    with client.responses.stream(**asked) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        final = events.get_final_response()
    same(text, WORDS)
    assert text == final.output_text
    assert final.usage is not None
    assert final.usage.output_tokens > 0
    function = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    choice = {"type": "function", "name": "weather"}
    called: Any = client.responses.create(
        model=MODEL, input=QUESTION, tools=[function], tool_choice=choice, max_output_tokens=300
    )
    (call,) = [item for item in called.output if item.type == "function_call"]
    is_weather(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "7 degrees"}
    said: Any = [{"role": "user", "content": QUESTION}, call, result]
    same(client.responses.create(model=MODEL, input=said, max_output_tokens=300).output_text, "7 degrees")


def embeddings() -> None:
    found = client.embeddings.create(model=FACTS["embedder"], input=[WORDS, QUESTION])
    assert len(found.data) == 2
    is_vector(found.data[0].embedding)


run(
    chat=chat,
    stream=stream,
    tools=tools,
    structured=structured,
    responses=responses,
    embeddings=embeddings,
)
