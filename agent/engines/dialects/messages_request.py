"""Requests of Anthropic's ``/v1/messages`` as requests of chat completions. Pure."""

from typing import Any

import orjson

from agent.engines.dialects.dialect import (
    JsonObject,
    Untranslatable,
    list_in,
    object_in,
    refuse,
    text_member,
    untranslatable,
)

PATH = "/v1/messages"

_UNMEANT: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],), "context_management": ({},)}
"""What only Anthropic's own servers do."""

_OWN = frozenset(
    (
        *("system", "messages", "stop_sequences", "metadata", "tools", "tool_choice", "thinking", "stream"),
        *("output_config", "output_format", "service_tier", "cache_control", "inference_geo", "betas"),
        *("diagnostics", "speed", "user_profile_id", "workspace_id"),
        *_UNMEANT,
    )
)
"""Members that are translated or say nothing to another engine; all others pass as they are."""

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_request(request: JsonObject) -> JsonObject:
    """Raises :class:`Untranslatable`."""
    refuse(request, _UNMEANT, PATH)
    chat = {name: value for name, value in request.items() if name not in _OWN}
    chat["messages"] = _system(request.get("system")) + [
        message
        for place, turn in enumerate(list_in(request.get("messages"), "messages"))
        for message in _turn(object_in(turn, f"messages.{place}"), f"messages.{place}")
    ]
    if request.get("stop_sequences"):
        chat["stop"] = request["stop_sequences"]
    user = (
        (request.get("metadata") or {}).get("user_id") if isinstance(request.get("metadata"), dict) else None
    )
    if isinstance(user, str):
        chat["user"] = user
    if request.get("tools"):
        chat["tools"] = [_tool(object_in(tool, "tools")) for tool in list_in(request["tools"], "tools")]
        if request.get("tool_choice") is not None:
            chat |= _tool_choice(object_in(request["tool_choice"], "tool_choice"))
    chat |= _output(request)
    if request.get("stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _system(system: Any) -> list[JsonObject]:
    if isinstance(system, list):
        blocks = [object_in(block, "system") for block in system]
        if any(block.get("type") != "text" for block in blocks):
            raise Untranslatable("Blocks of 'system' must be text.", "system")
        system = "\n\n".join(text_member(block, "text") for block in blocks)
    if system is not None and not isinstance(system, str):
        raise Untranslatable("'system' must be a text or a list of text blocks.", "system")
    return [{"role": "system", "content": system}] if system else []


def _turn(turn: JsonObject, where: str) -> list[JsonObject]:
    role, content = turn.get("role"), turn.get("content")
    if role not in ("user", "assistant", "system"):
        raise Untranslatable(f"{where}.role must be user or assistant.", f"{where}.role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = [object_in(block, f"{where}.content") for block in list_in(content, f"{where}.content")]
    return [_assistant_message(blocks)] if role == "assistant" else _user_messages(role, blocks)


def _assistant_message(blocks: list[JsonObject]) -> JsonObject:
    """Earlier thoughts are left out: templates cut them, and their signatures are another engine's."""
    texts, calls = [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(text_member(block, "text"))
        elif kind == "tool_use":
            arguments = orjson.dumps(block.get("input") or {}).decode()
            function = {"name": text_member(block, "name"), "arguments": arguments}
            calls.append({"id": text_member(block, "id"), "type": "function", "function": function})
        elif kind not in ("thinking", "redacted_thinking"):
            raise untranslatable(f"content of type {kind}", PATH)
    message: JsonObject = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    return message | {"tool_calls": calls} if calls else message


def _user_messages(role: str, blocks: list[JsonObject]) -> list[JsonObject]:
    """Results of tools become messages of their own, which follow the calls at once."""
    results: list[JsonObject] = []
    parts: list[JsonObject] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            text, images = _result(block.get("content"))
            call = text_member(block, "tool_use_id")
            results.append({"role": "tool", "tool_call_id": call, "content": text})
            parts += images
        else:
            parts.append(_part(block))
    if not parts:
        return results or [{"role": role, "content": ""}]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    content = texts[0] if len(parts) == len(texts) == 1 else parts
    return [*results, {"role": role, "content": content}]


def _result(content: Any) -> tuple[str, list[JsonObject]]:
    """The text of a tool's result, and its images: a tool's message holds text only."""
    if content is None or isinstance(content, str):
        return content or "", []
    parts = [_part(object_in(block, "content")) for block in list_in(content, "content")]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    return text, [part for part in parts if part["type"] != "text"]


def _part(block: JsonObject) -> JsonObject:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": text_member(block, "text")}
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if kind == "image" and source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": text_member(source, "url")}}
    if kind == "image" and source.get("type") == "base64":
        url = f"data:{text_member(source, 'media_type')};base64,{text_member(source, 'data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "document" and source.get("type") == "text":
        return {"type": "text", "text": text_member(source, "data")}
    what = f"{kind} with a source of type {source.get('type')}" if source else f"content of type {kind}"
    raise untranslatable(what, PATH)


def _tool(tool: JsonObject) -> JsonObject:
    if tool.get("type") not in (None, "custom"):
        raise untranslatable(f"tool of type {tool['type']}", PATH)
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema") or {"type": "object"}}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: JsonObject) -> JsonObject:
    kind = choice.get("type")
    chat: JsonObject = {}
    if kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        chat["tool_choice"] = _CHOICES[kind]
    else:
        raise Untranslatable("tool_choice.type must be auto, any, tool or none.", "tool_choice")
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    return chat


def _output(request: JsonObject) -> JsonObject:
    """Structured output, and how much is to be thought."""
    given = request.get("output_config")
    config = object_in(given, "output_config") if given is not None else {}
    chat: JsonObject = {}
    if config.get("effort") is not None:
        chat["reasoning_effort"] = config["effort"]
    form = config.get("format") or request.get("output_format")
    if form is not None:
        form = object_in(form, "output_config.format")
        if form.get("type") != "json_schema":
            raise Untranslatable("output_config.format.type must be json_schema.", "output_config")
        schema = {"name": "answer", "schema": form.get("schema"), "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat
