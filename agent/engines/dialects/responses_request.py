"""Requests of OpenAI's ``/v1/responses`` as requests of chat completions. Pure."""

from typing import Any

from agent.engines.dialects.dialect import (
    JsonObject,
    Untranslatable,
    list_in,
    object_in,
    refuse,
    text_member,
    untranslatable,
)

PATH = "/v1/responses"

_UNMEANT: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),
    "background": (False,),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
    "context_management": ([],),
    "multi_agent": (),
}
"""What needs an engine that keeps responses, or numbers that a translated answer has no place for."""

_OWN = frozenset(
    (
        *("input", "instructions", "max_output_tokens", "text", "reasoning", "tools", "tool_choice"),
        *("include", "store", "metadata", "max_tool_calls", "stream", "stream_options", "service_tier"),
        *("safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        *("moderation", "access_programs"),
        *_UNMEANT,
    )
)
"""Members that are translated or say nothing to another engine; all others pass as they are."""


def chat_request(request: JsonObject) -> JsonObject:
    """Raises :class:`Untranslatable`."""
    refuse(request, _UNMEANT, PATH)
    if "message.output_text.logprobs" in list_in(request.get("include") or [], "include"):
        raise untranslatable("include message.output_text.logprobs", PATH)
    chat = {name: value for name, value in request.items() if name not in _OWN}
    chat["messages"] = _messages(request)
    if request.get("max_output_tokens") is not None:
        chat["max_tokens"] = request["max_output_tokens"]
    if request.get("tools"):
        chat["tools"] = [_tool(object_in(tool, "tools")) for tool in list_in(request["tools"], "tools")]
        if request.get("tool_choice") is not None:
            chat["tool_choice"] = _tool_choice(request["tool_choice"])
    else:
        chat.pop("parallel_tool_calls", None)
    reasoning = request.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    if request.get("text") is not None:
        chat |= _text(object_in(request["text"], "text"))
    if request.get("stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _messages(request: JsonObject) -> list[JsonObject]:
    """The conversation. Instructions at its beginning become one message, as templates take one only."""
    given = request.get("input")
    messages: list[JsonObject] = []
    instructions = request.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise Untranslatable("'instructions' must be a text.", "instructions")
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for place, item in enumerate(list_in(given, "input")):
        _add(messages, object_in(item, f"input.{place}"), f"input.{place}")
    return messages


def _add(messages: list[JsonObject], item: JsonObject, where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        _add_message(messages, item, where)
    elif kind == "function_call":
        _add_call(messages, item)
    elif kind == "function_call_output":
        text, images = _output(item.get("output"), where)
        call = text_member(item, "call_id")
        messages.append({"role": "tool", "tool_call_id": call, "content": text})
        if images:
            messages.append({"role": "user", "content": images})
    elif kind != "reasoning":  # earlier thoughts are left out, as templates do
        raise untranslatable(f"input of type {kind}", PATH)


def _add_message(messages: list[JsonObject], item: JsonObject, where: str) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        raise Untranslatable(f"{where}.role must be user, assistant, system or developer.", f"{where}.role")
    if not isinstance(content, str):
        parts = [_part(object_in(part, where)) for part in list_in(content, f"{where}.content")]
        only_text = all(part["type"] == "text" for part in parts)
        joined = only_text and (len(parts) < 2 or role != "user")
        content = "".join(part["text"] for part in parts) if joined else parts
    role = "system" if role == "developer" else role
    last = messages[-1] if messages else {}
    if role == "system" == last.get("role") and len(messages) == 1 and isinstance(content, str):
        last["content"] = f"{last['content']}\n\n{content}"
    else:
        messages.append({"role": role, "content": content})


def _add_call(messages: list[JsonObject], item: JsonObject) -> None:
    """A call belongs to the assistant's message before it."""
    function = {"name": text_member(item, "name"), "arguments": text_member(item, "arguments")}
    call = {"id": text_member(item, "call_id"), "type": "function", "function": function}
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _output(output: Any, where: str) -> tuple[str, list[JsonObject]]:
    """The text of a tool's result, and its images: a tool's message holds text only."""
    if output is None or isinstance(output, str):
        return output or "", []
    parts = [_part(object_in(part, where)) for part in list_in(output, f"{where}.output")]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    return text, [part for part in parts if part["type"] != "text"]


def _part(part: JsonObject) -> JsonObject:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": text_member(part, "text")}
    if kind == "refusal":
        return {"type": "text", "text": text_member(part, "refusal")}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    if kind == "input_file" and isinstance(part.get("file_data"), str):
        file = {name: part[name] for name in ("file_data", "filename") if part.get(name) is not None}
        return {"type": "file", "file": file}
    what = f"{kind} without its data" if kind in ("input_image", "input_file") else f"content of type {kind}"
    raise untranslatable(what, PATH)


def _tool(tool: JsonObject) -> JsonObject:
    if tool.get("type") != "function":
        raise untranslatable(f"tool of type {tool.get('type')}", PATH)
    function = {"name": tool.get("name"), "parameters": tool.get("parameters") or {"type": "object"}}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    kind = object_in(choice, "tool_choice").get("type")
    if kind != "function":
        raise untranslatable(f"tool_choice of type {kind}", PATH)
    return {"type": "function", "function": {"name": choice.get("name")}}


def _text(text: JsonObject) -> JsonObject:
    chat: JsonObject = {}
    if text.get("verbosity") is not None:
        chat["verbosity"] = text["verbosity"]
    if text.get("format") is None:
        return chat
    form = object_in(text["format"], "text.format")
    kind = form.get("type")
    if kind == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type"}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif kind == "json_object":
        chat["response_format"] = {"type": "json_object"}
    elif kind != "text":
        raise untranslatable(f"text.format of type {kind}", PATH)
    return chat
