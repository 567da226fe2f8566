"""instructor: structured output by tools, by JSON schema and through Anthropic's SDK."""

import instructor
from anthropic import Anthropic
from checks import FACTS, QUESTION, run
from openai import OpenAI
from pydantic import BaseModel

MODEL = FACTS["model"]
ASKED = [{"role": "user", "content": QUESTION}]


class Weather(BaseModel):
    city: str
    celsius: int


def of_openai(mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=FACTS["base_url"], api_key=FACTS["key"]), mode=mode)


def ask(client: instructor.Instructor) -> None:
    found = client.create(response_model=Weather, messages=ASKED, model=MODEL, max_tokens=300, max_retries=1)
    assert isinstance(found, Weather)


def tools() -> None:
    ask(of_openai(instructor.Mode.TOOLS))


def structured() -> None:
    ask(of_openai(instructor.Mode.JSON_SCHEMA))


def stream() -> None:
    client = of_openai(instructor.Mode.JSON_SCHEMA)
    asked = {"messages": ASKED, "model": MODEL, "max_tokens": 300}
    *_, last = client.create_partial(response_model=Weather, **asked)
    assert isinstance(last.city, str)
    assert isinstance(last.celsius, int)


def responses() -> None:
    ask(of_openai(instructor.Mode.RESPONSES_TOOLS))


def messages() -> None:
    ask(instructor.from_anthropic(Anthropic(base_url=FACTS["url"], api_key=FACTS["key"])))


run(tools=tools, structured=structured, stream=stream, responses=responses, messages=messages)
