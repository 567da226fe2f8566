"""LiteLLM as a client."""

from typing import Any

import litellm
from checks import FACTS, QUESTION, WEATHER, WORDS, is_vector, is_weather, run, same
from pydantic import BaseModel

OPENAI: Any = {"model": f"openai/{FACTS['model']}", "api_base": FACTS["base_url"], "api_key": FACTS["key"]}
ANTHROPIC: Any = {"model": f"anthropic/{FACTS['model']}", "api_base": FACTS["url"], "api_key": FACTS["key"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
CHOICE = {"type": "function", "function": {"name": "weather"}}
litellm.drop_params = False


class Weather(BaseModel):
    city: str
    celsius: int


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def chat() -> None:
    answer = litellm.completion(**OPENAI, messages=said(WORDS), max_tokens=300)
    same(answer.choices[0].message.content, WORDS)


def stream() -> None:
    pieces = litellm.completion(**OPENAI, messages=said(WORDS), max_tokens=300, stream=True)
    same("".join(piece.choices[0].delta.content or "" for piece in pieces), WORDS)


def tools() -> None:
    asked = {"tools": [TOOL], "tool_choice": CHOICE, "max_tokens": 300}
    answer = litellm.completion(**OPENAI, messages=said(QUESTION), **asked)
    (call,) = answer.choices[0].message.tool_calls
    is_weather(call.function.arguments)


def structured() -> None:
    answer = litellm.completion(**OPENAI, messages=said(QUESTION), response_format=Weather, max_tokens=300)
    is_weather(answer.choices[0].message.content)


def responses() -> None:
    answer = litellm.responses(**OPENAI, input=WORDS, max_output_tokens=300)
    same(answer.output[-1].content[0].text, WORDS)


def messages() -> None:
    answer = litellm.completion(**ANTHROPIC, messages=said(WORDS), max_tokens=300)
    same(answer.choices[0].message.content, WORDS)
    pieces = litellm.completion(**ANTHROPIC, messages=said(WORDS), max_tokens=300, stream=True)
    same("".join(piece.choices[0].delta.content or "" for piece in pieces), WORDS)


def embeddings() -> None:
    asked = OPENAI | {"model": f"openai/{FACTS['embedder']}"}
    is_vector(litellm.embedding(**asked, input=[WORDS]).data[0]["embedding"])


run(
    chat=chat,
    stream=stream,
    tools=tools,
    structured=structured,
    responses=responses,
    messages=messages,
    embeddings=embeddings,
)
