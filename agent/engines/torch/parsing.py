"""Request bodies of the OpenAI surface, read and validated. Pure.

Nothing is silently ignored: a parameter that would change the answer and that this engine has no answer for
is an :class:`~agent.engines.torch.errors.InvalidRequest` that names it; only those of
``_WITHOUT_EFFECT`` pass.
"""

from collections.abc import Mapping, Sequence
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
CHOICES = 128
"""Choices of one request: ``n`` times the prompts. OpenAI's limit of ``n``."""
TOP_LOGPROBS = 20
"""OpenAI's limit of chat. That of completions is 5; other engines take more there too."""
_BIASED_TOKENS = 4096
_COMPLETION_TOKENS = 16
"""OpenAI's default for completions; chat goes on to the end of the context."""

_WITHOUT_EFFECT = frozenset(
    {
        "metadata",
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
    "parallel_tool_calls": (True,),
    "tool_choice": ("auto",),
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
"""Known parameters, and the values that ask for nothing. What a request has no field for is refused with
other values."""

Body = Mapping[str, Any]

Number = Annotated[float, Strict()]
Integer = Annotated[int, Strict(), Field(lt=2**63)]
TokenCount = Annotated[Integer, Field(ge=1)]
Tokens = Annotated[list[Annotated[Integer, Field(ge=0)]], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. ``temperature`` 0: the likeliest; ``top_k`` 0: of all tokens.

    ``presence_penalty`` and ``frequency_penalty`` count the tokens of the answer, ``repetition_penalty``
    those of the prompt as well. ``logit_bias`` has tokens and what is added to their logits.
    ``top_logprobs``: how many alternatives to each token are reported with their log probabilities; None:
    nothing is.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None

    @property
    def penalises(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


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
        param, wanted = cls._expected(str(name), place)
        if error["type"] == "extra_forbidden":
            return _unsupported(param, error["input"], *map(str, place))
        reason = f"must be {wanted}" if wanted else f"is refused: {error['msg']}"
        return InvalidRequest(f"{param} {reason}.", param=param)

    @classmethod
    def _expected(cls, name: str, place: Sequence[int | str]) -> tuple[str, str | None]:
        """How a client is told of a parameter, and what it must be. ``place`` is where in it the error is."""
        field = cls.model_fields.get(name)
        return name, None if field is None else field.description


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    include_usage: StrictBool | None = None
    include_obfuscation: Any = None


class JSONSchemaFormat(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: StrictStr | None = None
    description: StrictStr | None = None
    strict: StrictBool | None = None
    schema_: dict[str, Any] | StrictBool | None = Field(default=None, alias="schema")


class ResponseFormat(BaseModel):
    """What the answer has to be: any JSON object, or JSON of a schema."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["json_object", "json_schema"]
    json_schema: JSONSchemaFormat | None = None

    @property
    def schema_of_answer(self) -> Any:
        schema = None if self.json_schema is None else self.json_schema.schema_
        return {"type": "object"} if schema is None else schema


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class TextRequest(EngineRequest):
    """What chat and completions have in common. ``max_tokens`` None: to the end of the context."""

    max_tokens: TokenCount | None = None
    temperature: Annotated[Number, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[Number, Field(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[Integer, Field(ge=-1)] | None = None
    min_p: Annotated[Number, Field(ge=0.0, le=1.0)] = 0.0
    presence_penalty: Annotated[Number, Field(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[Number, Field(ge=-2.0, le=2.0)] = 0.0
    repetition_penalty: Annotated[Number, Field(gt=0.0, le=100.0)] = 1.0
    logit_bias: Annotated[
        dict[Annotated[int, Field(ge=0)], Annotated[Number, Field(ge=-100.0, le=100.0)]],
        Field(max_length=_BIASED_TOKENS),
    ] = Field(default={}, description="an object of token ids and numbers from -100 to 100")
    response_format: ResponseFormat | None = Field(
        default=None, description="text, json_object, or json_schema with its schema"
    )
    n: Annotated[Integer, Field(ge=1, le=CHOICES)] = 1
    best_of: Integer | None = None
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
        return Sampling(
            temperature=temperature,
            top_p=top_p,
            top_k=max(0, self.top_k or 0),
            seed=self.seed,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=tuple(self.logit_bias.items()),
            top_logprobs=self.wanted_logprobs,
        )

    @property
    def wanted_logprobs(self) -> int | None:
        """As :attr:`Sampling.top_logprobs`."""
        return None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options are allowed only with stream=true.", param="stream_options")
        form = self.response_format
        if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
            raise InvalidRequest("json_schema belongs to the type json_schema.", param="response_format")
        if form is not None and self.ignore_eos:
            raise InvalidRequest("An answer in JSON ends where the JSON does.", param="ignore_eos")
        if self.best_of not in (None, self.n):
            raise InvalidRequest(
                "This engine does not support best_of: it returns every text that it computes. Use n.",
                param="best_of",
                code="unsupported_parameter",
            )
        return self


def _as_prompts(value: Any) -> Any:
    return value if isinstance(value, list) and not (value and isinstance(value[0], int)) else [value]


class CompletionRequest(TextRequest):
    """``max_tokens`` may be 0 with ``echo``: then the answer is the prompt."""

    max_tokens: Annotated[Integer, Field(ge=0)] | None = _COMPLETION_TOKENS
    prompt: Annotated[
        list[StrictStr | Tokens], Field(min_length=1, max_length=CHOICES), BeforeValidator(_as_prompts)
    ] = Field(repr=False, description=f"a string, a list of token ids, or a list of 1 to {CHOICES} of either")
    echo: StrictBool = False
    logprobs: Annotated[Integer, Field(ge=0, le=TOP_LOGPROBS)] | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    @model_validator(mode="after")
    def _check_amount(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("max_tokens must be at least 1 without echo.", param="max_tokens")
        if len(self.prompt) * self.n > CHOICES:
            raise InvalidRequest(
                f"n times the prompts must be at most {CHOICES}. Send several requests.", param="n"
            )
        return self


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
