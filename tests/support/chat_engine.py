"""An engine with chat completions and embeddings and nothing else, which does what clients' checks ask for.

Its model ``chat-only`` calls the first tool that it is offered, with arguments of the tool's schema, answers
in the schema that a request wants, and repeats the user's words in all other cases. Conversations that chat
templates would refuse are answered 400. ``python -m tests.support.chat_engine`` says where it listens, and
serves until its process ends.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from aiohttp import web

from tests.support.served_app import serve_app

MODEL = "chat-only"
ROLES = ("system", "developer", "user", "assistant", "tool")
EMBEDDING = (0.6, 0.0, 0.8)

Json = dict[str, Any]


class BadConversation(Exception):
    """What no chat template takes."""


def text_in(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def check_messages(messages: Any) -> list[Json]:
    """Raises BadConversation."""
    if not isinstance(messages, list) or not messages:
        raise BadConversation("messages: a list with at least one message is needed")
    called: set[str] = set()
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise BadConversation(f"messages.{place}: no such role")
        if message["role"] == "system" and place:
            raise BadConversation(f"messages.{place}: a system message must be the first")
        called.update(call["id"] for call in message.get("tool_calls") or ())
        if message["role"] == "tool" and message.get("tool_call_id") not in called:
            raise BadConversation(f"messages.{place}: the result of a call that nobody made")
    return messages


def instance_of(schema: Any, root: Mapping[str, Any] | None = None) -> Any:
    """The simplest value of a JSON schema."""
    root = schema if root is None else root
    if not isinstance(schema, dict):
        return "words"
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return instance_of((root or {}).get("$defs", root.get("definitions", {}) if root else {})[name], root)
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return instance_of(schema[word][0], root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: instance_of(each, root) for name, each in schema.get("properties", {}).items()}
    if kind == "array":
        return [instance_of(schema.get("items", {}), root) for _ in range(schema.get("minItems", 1))]
    plain = {"integer": 7, "number": 7.5, "boolean": True, "null": None}
    return plain.get(kind, "words")


def answer_to(request: Json) -> tuple[str, Json | None]:
    """The text, or the function that is called. Raises BadConversation."""
    messages = check_messages(request.get("messages"))
    form = request.get("response_format") or {}
    tools, choice = request.get("tools") or [], request.get("tool_choice", "auto")
    if tools and choice != "none" and messages[-1]["role"] != "tool":
        named = choice["function"]["name"] if isinstance(choice, dict) else tools[0]["function"]["name"]
        function = next(tool["function"] for tool in tools if tool["function"]["name"] == named)
        arguments = orjson.dumps(instance_of(function.get("parameters", {}))).decode()
        return "", {"name": named, "arguments": arguments}
    if form.get("type") == "json_schema":
        return orjson.dumps(instance_of(form["json_schema"]["schema"])).decode(), None
    if form.get("type") == "json_object":
        return '{"city": "words", "celsius": 7}', None
    return f"You said: {text_in(messages[-1].get('content'))}", None


def usage_of(request: Json, text: str) -> Json:
    read = sum(len(text_in(message.get("content")).split()) + 1 for message in request["messages"])
    written = max(1, len(text.split()))
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def whole(request: Json) -> Json:
    text, function = answer_to(request)
    call = {"id": "call_1", "type": "function", "function": function}
    message: Json = {"role": "assistant", "content": text if function is None else None}
    if function is not None:
        message["tool_calls"] = [call]
    finish = "stop" if function is None else "tool_calls"
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000}
    return head | {"model": request.get("model"), "choices": [choice], "usage": usage_of(request, text)}


def chunks(request: Json) -> Iterator[Json]:
    """The same as a stream: texts word by word, arguments in pieces of eight characters."""
    text, function = answer_to(request)
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000}
    head |= {"model": request.get("model")}

    def chunk(delta: Json, finish: str | None = None) -> Json:
        return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for word in re.findall(r"\s*\S+|\s+", text):
        yield chunk({"content": word})
    if function is not None:
        begun = {"index": 0, "id": "call_1", "type": "function"}
        yield chunk({"tool_calls": [begun | {"function": {"name": function["name"], "arguments": ""}}]})
        arguments = str(function["arguments"])
        for place in range(0, len(arguments), 8):
            piece = {"arguments": arguments[place : place + 8]}
            yield chunk({"tool_calls": [{"index": 0, "function": piece}]})
    yield chunk({}, "stop" if function is None else "tool_calls")
    if (request.get("stream_options") or {}).get("include_usage"):
        yield head | {"choices": [], "usage": usage_of(request, text)}


async def _models(request: web.Request) -> web.Response:
    entry = {"id": MODEL, "object": "model", "owned_by": "tests", "max_model_len": 4096}
    return web.json_response({"object": "list", "data": [entry | {"capabilities": ["completion", "tools"]}]})


async def _chat(request: web.Request) -> web.StreamResponse:
    asked = orjson.loads(await request.read())
    try:
        answer = list(chunks(asked)) if asked.get("stream") else whole(asked)
    except BadConversation as error:
        said = {"message": str(error), "type": "BadRequestError", "param": None, "code": 400}
        return web.json_response({"error": said}, status=400)
    if isinstance(answer, dict):
        return web.json_response(answer)
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for each in answer:
        await response.write(b"data: " + orjson.dumps(each) + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def _embeddings(request: web.Request) -> web.Response:
    asked = orjson.loads(await request.read())
    given = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
    vector: Any = list(EMBEDDING)
    if asked.get("encoding_format") == "base64":
        vector = "mpkZPwAAAADNzEw/"
    data = [{"object": "embedding", "index": place, "embedding": vector} for place in range(len(given))]
    usage = {"prompt_tokens": len(given), "total_tokens": len(given)}
    return web.json_response({"object": "list", "data": data, "model": MODEL, "usage": usage})


def app() -> web.Application:
    made = web.Application(client_max_size=1 << 26)
    made.router.add_get("/v1/models", _models)
    made.router.add_post("/v1/chat/completions", _chat)
    made.router.add_post("/v1/embeddings", _embeddings)
    return made


if __name__ == "__main__":
    asyncio.run(serve_app(app()))
