"""Request bodies of the OpenAI surface, read and validated. Pure.

Nothing is silently ignored: a parameter that would change the answer and that this engine has no answer for
is an :class:`~agent.engines.torch.errors.InvalidRequest` that names it; only those of
``_WITHOUT_EFFECT`` pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

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

_MESSAGE_WITHOUT_EFFECT = frozenset({"name", "refusal", "annotations"})

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

Body = Mapping[str, Any]

Number = Annotated[float, Strict()]
Integer = Annotated[int, Strict(), Field(lt=2**63)]
TokenCount = Annotated[Integer, Field(ge=1)]
Tokens = Annotated[list[Annotated[Integer, Field(ge=0)]], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. ``temperature`` 0: the likeliest; ``top_k`` 0: of all tokens."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


class EngineRequest(BaseModel):
    """A body whose every parameter is known. A parameter that is null counts as left out."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr | None = None

    @classmethod
    def read(cls, body: Body) -> Self:
        """Raises :class:`InvalidRequest`, which names the parameter."""
        try:
            return cls.model_validate({name: body[name] for name in body if _has_effect(name, body[name])})
        except ValidationError as error:
            raise cls._refusal(error.errors(include_url=False)[0]) from None

    @classmethod
    def _refusal(cls, error: ErrorDetails) -> InvalidRequest:
        """What a client is told of an error of pydantic's. A field's description says what is wanted."""
        name, *place = error["loc"]
        param = str(name)
        field = cls.model_fields.get(param)
        if name == "messages" and place:
            param += f"[{place[0]}]" + "".join(f".{step}" for step in place[1:2])
            field = Message.model_fields.get("".join(map(str, place[1:2])))
        if error["type"] == "extra_forbidden":
            return _unsupported(param, error["input"], *map(str, place))
        wanted = field.description if field is not None else "an object with a role and a content"
        reason = f"must be {wanted}" if wanted else f"is refused: {error['msg']}"
        return InvalidRequest(f"{param} {reason}.", param=param)


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    include_usage: StrictBool | None = None
    include_obfuscation: Any = None


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class TextRequest(EngineRequest):
    """What chat and completions have in common. ``max_tokens`` None: to the end of the context."""

    max_tokens: TokenCount | None = None
    temperature: Annotated[Number, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[Number, Field(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[Integer, Field(ge=-1)] | None = None
    seed: Annotated[Integer, Field(ge=-(2**63))] | None = None
    stop: Annotated[
        list[Annotated[StrictStr, Field(min_length=1, max_length=_STOP_CHARS)]],
        Field(max_length=_STOPS),
        BeforeValidator(_as_list),
    ] = []
    ignore_eos: StrictBool = False
    stream: StrictBool = False
    stream_options: StreamOptions | None = None

    @property
    def sampling(self) -> Sampling:
        """Greedy unless the request asks for sampling, by a temperature or by what only makes sense with
        one."""
        temperature = self.temperature
        if temperature is None:
            temperature = 0.0 if self.top_p is None and self.top_k is None else 1.0
        top_p = 1.0 if self.top_p is None else self.top_p
        return Sampling(temperature=temperature, top_p=top_p, top_k=max(0, self.top_k or 0), seed=self.seed)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options are allowed only with stream=true.", param="stream_options")
        return self


class TextPart(BaseModel):
    type: Literal["text"]
    text: StrictStr


class Message(BaseModel):
    """One message of a chat. :class:`ChatRequest` looks at members that are not known here."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="system, developer, user or assistant: this engine calls no tools"
    )
    content: StrictStr | list[TextPart] = Field(
        description="a string or a list of text parts: this engine reads text"
    )

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    def plain(self) -> dict[str, str]:
        """As chat templates take it."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.text}


class ChatRequest(TextRequest):
    """``continue_final_message``: the last message is the beginning of the answer, not one to answer.
    ``continued_max_tokens``: how long the whole answer may be, that beginning included; ``max_tokens`` then
    says nothing."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=_MESSAGES, repr=False)]
    max_completion_tokens: TokenCount | None = None
    add_generation_prompt: StrictBool = True
    continue_final_message: StrictBool = False
    continued_max_tokens: TokenCount | None = None

    @model_validator(mode="after")
    def _settle(self) -> Self:
        self.max_tokens = self.max_completion_tokens or self.max_tokens
        for index, message in enumerate(self.messages):
            for name, value in (message.model_extra or {}).items():
                if name not in _MESSAGE_WITHOUT_EFFECT and value not in (None, []):
                    param = f"messages[{index}].{name}"
                    raise InvalidRequest(f"This engine does not support {param}.", param=param)
        if not self.continue_final_message:
            return self
        if "add_generation_prompt" in self.model_fields_set and self.add_generation_prompt:
            raise InvalidRequest(
                "add_generation_prompt and continue_final_message exclude each other.",
                param="continue_final_message",
            )
        self.add_generation_prompt = False
        return self


def _only_one(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(item, str | list) for item in value):
        return value
    if len(value) > 1:
        raise InvalidRequest(
            "This engine takes one prompt per request; send one request for each.",
            param="prompt",
            code="unsupported_parameter",
        )
    return value[0] if value else value


class CompletionRequest(TextRequest):
    max_tokens: TokenCount | None = _COMPLETION_TOKENS
    prompt: Annotated[StrictStr | Tokens, BeforeValidator(_only_one)] = Field(
        repr=False, description="a string or a list of token ids"
    )


def _several(value: Any) -> Any:
    return value if isinstance(value, list) and not (value and isinstance(value[0], int)) else [value]


class EmbeddingRequest(EngineRequest):
    input: Annotated[
        list[Annotated[StrictStr, Field(min_length=1)] | Tokens],
        Field(min_length=1, max_length=_EMBEDDING_INPUTS),
        BeforeValidator(_several),
    ] = Field(
        repr=False,
        description=f"1 to {_EMBEDDING_INPUTS} strings or lists of token ids, and none of them empty",
    )
    encoding_format: Literal["float", "base64"] = "float"


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object that a body must be."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    return value


def _has_effect(name: str, value: Any) -> bool:
    """False for a parameter that never changes the answer, and for a value that asks for nothing."""
    if value is None or name in _WITHOUT_EFFECT:
        return False
    if name not in _NEUTRAL:
        return True
    neutral = [item for item in _NEUTRAL[name] if isinstance(item, bool) == isinstance(value, bool)]
    return value not in neutral  # in which 0 would equal False


def _unsupported(param: str, value: Any, *place: str) -> InvalidRequest:
    """``place``: where in the parameter it is, if it is not the whole."""
    if param in _NEUTRAL and not place:
        reason = f"This engine does not support {param}={json_excerpt(value)}. "
        reason += "Leave it out, or ask a model on another engine."
        return InvalidRequest(reason, param=param, code="unsupported_parameter")
    unknown = ".".join((param, *place))
    reason = f"Unrecognized request argument supplied: {unknown}. Leave it out."
    return InvalidRequest(reason, param=param, code="unknown_parameter")
