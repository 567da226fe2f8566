"""LangChain, with its packages for OpenAI and Anthropic."""

from checks import FACTS, QUESTION, SYSTEM, WORDS, is_vector, is_weather, run, same
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

OPENAI = {"model": FACTS["model"], "base_url": FACTS["base_url"], "api_key": FACTS["key"], "max_retries": 0}
ANTHROPIC = OPENAI | {"base_url": FACTS["url"]}


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    celsius: int


@tool
def weather(city: str, celsius: int) -> str:
    """The weather of a city."""
    return f"{city}: {celsius}"


def said(text: str) -> list[tuple[str, str]]:
    return [("system", SYSTEM), ("human", text)]


def chat() -> None:
    same(str(ChatOpenAI(**OPENAI, max_tokens=300).invoke(said(WORDS)).content), WORDS)


def stream() -> None:
    pieces = list(ChatOpenAI(**OPENAI, max_tokens=300).stream(said(WORDS)))
    same("".join(str(piece.content) for piece in pieces), WORDS)


def _tools(model: ChatOpenAI | ChatAnthropic) -> None:
    first = model.bind_tools([weather], tool_choice="weather").invoke(said(QUESTION))
    (call,) = first.tool_calls
    is_weather(call["args"])
    result = ToolMessage("7 degrees", tool_call_id=call["id"])
    answer = model.bind_tools([weather]).invoke([*said(QUESTION), first, result])
    same(answer.text if isinstance(answer.text, str) else answer.text(), "7 degrees")


def tools() -> None:
    _tools(ChatOpenAI(**OPENAI, max_tokens=300))


def structured() -> None:
    for method in ("json_schema", "function_calling"):
        model = ChatOpenAI(**OPENAI, max_tokens=300).with_structured_output(Weather, method=method)
        assert isinstance(model.invoke(said(QUESTION)), Weather), method


def responses() -> None:
    model = ChatOpenAI(**OPENAI, max_tokens=300, use_responses_api=True)
    same(model.invoke(said(WORDS)).text, WORDS)
    same("".join(piece.text for piece in model.stream(said(WORDS))), WORDS)
    _tools(model)


def messages() -> None:
    model = ChatAnthropic(**ANTHROPIC, max_tokens=300)
    same(str(model.invoke(said(WORDS)).text), WORDS)
    same("".join(piece.text for piece in model.stream(said(WORDS))), WORDS)
    _tools(model)
    assert isinstance(model.with_structured_output(Weather).invoke(said(QUESTION)), Weather)


def embeddings() -> None:
    asked = OPENAI | {"model": FACTS["embedder"]}
    is_vector(OpenAIEmbeddings(**asked, check_embedding_ctx_length=False).embed_query(WORDS))


run(
    chat=chat,
    stream=stream,
    tools=tools,
    structured=structured,
    responses=responses,
    messages=messages,
    embeddings=embeddings,
)
