"""LlamaIndex, with its packages for servers like OpenAI's and for Anthropic."""

from checks import FACTS, QUESTION, SYSTEM, WORDS, Unasked, is_vector, is_weather, run, same
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel

OPENAI = {"model": FACTS["model"], "api_base": FACTS["base_url"], "api_key": FACTS["key"], "max_retries": 0}
LIKE = OPENAI | {
    "is_chat_model": True,
    "is_function_calling_model": True,
    "should_use_structured_outputs": True,
    "context_window": 1024,
    "max_tokens": 300,
}


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    celsius: int


def weather(city: str, celsius: int) -> str:
    """The weather of a city."""
    return f"{city}: {celsius}"


TOOL = FunctionTool.from_defaults(weather)


def said(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=text)]


def chat() -> None:
    same(OpenAILike(**LIKE).chat(said(WORDS)).message.content or "", WORDS)


def stream() -> None:
    same("".join(piece.delta or "" for piece in OpenAILike(**LIKE).stream_chat(said(WORDS))), WORDS)


def tools() -> None:
    model = OpenAILike(**LIKE)
    answer = model.chat_with_tools([TOOL], chat_history=said(QUESTION), tool_required=True)
    (call,) = model.get_tool_calls_from_response(answer)
    is_weather(call.tool_kwargs)


def structured() -> None:
    answer = OpenAILike(**LIKE).as_structured_llm(Weather).chat(said(QUESTION))
    assert isinstance(answer.raw, Weather)


def responses() -> None:
    model = OpenAILikeResponses(**OPENAI, context_window=1024, max_output_tokens=300)
    same(model.chat(said(WORDS)).message.content or "", WORDS)
    same("".join(piece.delta or "" for piece in model.stream_chat(said(WORDS))), WORDS)


def messages() -> None:
    if not FACTS["alias"]:
        raise Unasked("its package for Anthropic takes no names but those of Anthropic's models")
    model = Anthropic(
        model=FACTS["alias"], base_url=FACTS["url"], api_key=FACTS["key"], max_tokens=300, max_retries=0
    )
    same(model.chat(said(WORDS)).message.content or "", WORDS)
    same("".join(piece.delta or "" for piece in model.stream_chat(said(WORDS))), WORDS)


def embeddings() -> None:
    model = OpenAILikeEmbedding(
        model_name=FACTS["embedder"], api_base=FACTS["base_url"], api_key=FACTS["key"], max_retries=0
    )
    is_vector(model.get_text_embedding(WORDS))


run(
    chat=chat,
    stream=stream,
    tools=tools,
    structured=structured,
    responses=responses,
    messages=messages,
    embeddings=embeddings,
)
