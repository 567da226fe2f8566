"""Request bodies of the OpenAI surface, read and validated. Pure.

Nothing is silently ignored: a parameter that would change the answer and that this engine has no answer for
is an :class:`~agent.engines.torch.errors.InvalidRequest` that names it; only those of
``_WITHOUT_EFFECT`` pass.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from agent.engines.torch.errors import InvalidRequest
from shared.process.excerpt import json_excerpt

_STOPS = 16
"""More stop strings than OpenAI's 4, as other engines allow; each is searched for in every piece of text."""
_STOP_CHARS = 256
_MESSAGES = 4096
_EMBEDDING_INPUTS = 2048
"""OpenAI's own limit."""
_COMPLETION_TOKENS = 16
"""OpenAI's default for completions; chat goes on to the end of the context."""

_WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Parameters that never change the answer."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "echo": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}
"""Known parameters without support, and the values that ask for nothing."""

_SAMPLING = frozenset({"temperature", "top_p", "top_k", "seed"})
_COMMON = _SAMPLING | {"model", "stream", "stream_options", "max_tokens", "stop", "ignore_eos"}
_CHAT = _COMMON | {
    "messages",
    "max_completion_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "continued_max_tokens",
}
_COMPLETION = _COMMON | {"prompt"}
_EMBEDDING = frozenset({"model", "input", "encoding_format"})

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. ``temperature`` 0: the likeliest; ``top_k`` 0: of all tokens."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """What chat and completions have in common. ``max_tokens`` None: to the end of the context."""

    max_tokens: int | None
    sampling: Sampling
    stop: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(TextRequest):
    """``continue_final_message``: the last message is the beginning of the answer, not one to answer.
    ``continued_max_tokens``: how long the whole answer may be, that beginning included; ``max_tokens`` then
    says nothing."""

    messages: tuple[dict[str, str], ...] = field(repr=False)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    continued_max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(TextRequest):
    prompt: str | tuple[int, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    inputs: tuple[str | tuple[int, ...], ...] = field(repr=False)
    base64: bool


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object that a body must be."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    return value


def requested_model(body: Body) -> str | None:
    """The model's name, None if the body names none."""
    name: str | None = _optional(body, "model", str, "a string")
    return name


def read_chat(body: Body) -> ChatRequest:
    _refuse_unsupported(body, _CHAT)
    longest = _integer(body, "max_completion_tokens", least=1)
    continued = _flag(body, "continue_final_message", default=False)
    prompted = _flag(body, "add_generation_prompt", default=not continued)
    if continued and prompted:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message exclude each other.",
            param="continue_final_message",
        )
    return ChatRequest(
        messages=_messages(body.get("messages")),
        add_generation_prompt=prompted,
        continue_final_message=continued,
        continued_max_tokens=_integer(body, "continued_max_tokens", least=1) if continued else None,
        **_text_members(body, _integer(body, "max_tokens", least=1) if longest is None else longest),
    )


def read_completion(body: Body) -> CompletionRequest:
    _refuse_unsupported(body, _COMPLETION)
    longest = _integer(body, "max_tokens", least=1)
    return CompletionRequest(
        prompt=_prompt(body.get("prompt")),
        **_text_members(body, _COMPLETION_TOKENS if longest is None else longest),
    )


def read_embedding(body: Body) -> EmbeddingRequest:
    _refuse_unsupported(body, _EMBEDDING)
    encoding = body.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise InvalidRequest("encoding_format must be 'float' or 'base64'.", param="encoding_format")
    return EmbeddingRequest(inputs=_embedding_inputs(body.get("input")), base64=encoding == "base64")


def _refuse_unsupported(body: Body, known: frozenset[str]) -> None:
    for name, value in body.items():
        if name in known or name in _WITHOUT_EFFECT or value is None:
            continue
        if name not in _NEUTRAL:
            raise InvalidRequest(
                f"Unrecognized request argument supplied: {name}. Leave it out.",
                param=name,
                code="unknown_parameter",
            )
        if not any(_same(value, neutral) for neutral in _NEUTRAL[name]):
            raise InvalidRequest(
                f"This engine does not support {name}={json_excerpt(value)}. "
                "Leave it out, or ask a model on another engine.",
                param=name,
                code="unsupported_parameter",
            )


def _same(value: Any, other: Any) -> bool:
    """Equal, with 0 and 1 kept apart from false and true."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _text_members(body: Body, max_tokens: int | None) -> dict[str, Any]:
    stream = _flag(body, "stream", default=False)
    return {
        "max_tokens": max_tokens,
        "sampling": _sampling(body),
        "stop": _stop(body.get("stop")),
        "ignore_eos": _flag(body, "ignore_eos", default=False),
        "stream": stream,
        "include_usage": _include_usage(body.get("stream_options"), stream),
    }


def _sampling(body: Body) -> Sampling:
    """Greedy unless the request asks for sampling, by a temperature or by what only makes sense with one."""
    temperature = _number(body, "temperature", least=0.0, most=2.0)
    top_p = _number(body, "top_p", least=0.0, most=1.0)
    top_k = _integer(body, "top_k", least=-1)
    if temperature is None:
        temperature = 0.0 if top_p is None and top_k is None else 1.0
    return Sampling(
        temperature=temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=max(0, top_k or 0),
        seed=_integer(body, "seed", least=-(2**63)),
    )


def _include_usage(options: Any, stream: bool) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict):
        raise InvalidRequest("stream_options must be an object.", param="stream_options")
    if not stream:
        raise InvalidRequest("stream_options are allowed only with stream=true.", param="stream_options")
    for name in options:
        if name not in ("include_usage", "include_obfuscation"):
            raise InvalidRequest(
                f"Unrecognized stream option: {name}.", param="stream_options", code="unknown_parameter"
            )
    return _flag(options, "include_usage", default=False)


def _stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > _STOPS:
        raise InvalidRequest(f"stop must be a string or a list of at most {_STOPS} strings.", param="stop")
    if not all(isinstance(stop, str) and 0 < len(stop) <= _STOP_CHARS for stop in stops):
        raise InvalidRequest(f"Each stop string must have 1 to {_STOP_CHARS} characters.", param="stop")
    return tuple(stops)


def _messages(value: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list) or not 0 < len(value) <= _MESSAGES:
        raise InvalidRequest(f"messages must be a list of 1 to {_MESSAGES} messages.", param="messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def _message(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise InvalidRequest(f"{where} must be an object with a role.", param=where)
    role = "system" if value["role"] == "developer" else value["role"]
    if role not in ("system", "user", "assistant"):
        raise InvalidRequest(
            f"{where}.role must be system, developer, user or assistant: this engine calls no tools.",
            param=f"{where}.role",
        )
    for name, item in value.items():
        if name not in ("role", "content", "name", "refusal", "annotations") and item not in (None, []):
            raise InvalidRequest(f"This engine does not support {where}.{name}.", param=f"{where}.{name}")
    return {"role": role, "content": _content(value.get("content"), f"{where}.content")}


def _content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} must be a string or a list of text parts.", param=where)
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where} must hold text parts only: this engine reads text.", param=where)
        texts.append(part["text"])
    return "".join(texts)


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(_is_token(item) for item in value):
        return tuple(value)
    if isinstance(value, list) and len(value) > 1 and all(isinstance(item, str | list) for item in value):
        raise InvalidRequest(
            "This engine takes one prompt per request; send one request for each.",
            param="prompt",
            code="unsupported_parameter",
        )
    raise InvalidRequest("prompt must be a string or a list of token ids.", param="prompt")


def _embedding_inputs(value: Any) -> tuple[str | tuple[int, ...], ...]:
    items = value if isinstance(value, list) and not (value and _is_token(value[0])) else [value]
    if not 0 < len(items) <= _EMBEDDING_INPUTS:
        raise InvalidRequest(f"input must hold 1 to {_EMBEDDING_INPUTS} items.", param="input")
    inputs: list[str | tuple[int, ...]] = []
    for index, item in enumerate(items):
        if isinstance(item, str) and item:
            inputs.append(item)
        elif isinstance(item, list) and item and all(_is_token(token) for token in item):
            inputs.append(tuple(item))
        else:
            raise InvalidRequest(
                f"input[{index}] must be a string or a list of token ids, and not empty.", param="input"
            )
    return tuple(inputs)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _optional(body: Body, name: str, kind: type, wanted: str) -> Any:
    value = body.get(name)
    if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise InvalidRequest(f"{name} must be {wanted}.", param=name)
    return value


def _flag(body: Body, name: str, *, default: bool) -> bool:
    value = _optional(body, name, bool, "true or false")
    return default if value is None else bool(value)


def _integer(body: Body, name: str, *, least: int) -> int | None:
    value = _optional(body, name, int, "an integer")
    if value is not None and not least <= value < 2**63:
        raise InvalidRequest(f"{name} must be an integer of at least {least}.", param=name)
    return None if value is None else int(value)


def _number(body: Body, name: str, *, least: float, most: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequest(f"{name} must be a number.", param=name)
    if not least <= value <= most:
        raise InvalidRequest(f"{name} must be from {least:g} to {most:g}.", param=name)
    return float(value)
