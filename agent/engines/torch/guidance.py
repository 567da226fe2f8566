"""Answers held to a grammar, by llguidance: JSON, JSON of a schema, and calls of tools.

The library is optional. It says which tokens may come next; `sampling` leaves only those.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import orjson
import torch

from agent.engines.torch.chat_requests import OfferedTool
from agent.engines.torch.ending import ZONE_TOKENS, Matcher, TextEnding, tokens_allowed
from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.json_position import JSONPosition, TokenStarts
from agent.engines.torch.models import LoadedModel
from agent.engines.torch.schemas import closed
from agent.engines.torch.tool_calls import ARGS, ToolFormat

NOT_INSTALLED = "needs llguidance on the engine's host: pip install 'trunkline[guided]'"

_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As most JSON that models were trained on. White space that a model may choose freely is what weak models
never stop to write."""

_SCHEMA_BYTES = 512 * 1024


class TextGuide:
    """Implements :class:`agent.engines.torch.sampling.Guide` for one text."""

    def __init__(
        self, matcher: Matcher, position: JSONPosition, ending: TextEnding, end_ids: Sequence[int]
    ) -> None:
        """``end_ids``: the tokens that end a text."""
        self.end_ids = end_ids
        self._matcher = matcher
        self._position = position
        self._ending = ending

    def copy(self) -> "TextGuide":
        """For another text, from where this one is."""
        return TextGuide(self._matcher.deep_copy(), self._position.copy(), self._ending.copy(), self.end_ids)

    def takes(self, tokens: Sequence[int]) -> bool:
        """Whether the text may go on with all of them."""
        return self._matcher.validate_tokens(list(tokens)) == len(tokens)

    def follow(self, tokens: Sequence[int]) -> None:
        if tokens and not self._matcher.consume_tokens(list(tokens)):
            raise ValueError(self._matcher.get_error())
        for token in tokens:
            self._ending.follow((token,), self._position)
            self._position.follow((token,))

    def allowed(self, vocabulary: int) -> torch.Tensor:
        return self._position.without_long_numbers(tokens_allowed(self._matcher, vocabulary))

    def within(self, allowed: torch.Tensor, scores: torch.Tensor, left: int) -> torch.Tensor:
        if left > ZONE_TOKENS:
            return allowed
        return self._ending.within(self._matcher, self._position, allowed, scores, left)

    def closing(self, allowed: torch.Tensor) -> torch.Tensor | None:
        return None if bool(allowed[self.end_ids].any()) else self._position.closing(allowed)


class Guidance:
    """Makes guides for the texts of one model. Its methods take up to a second, the first one a few more."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    def json(self, schema: Mapping[str, Any] | bool) -> TextGuide:
        """For an answer that is JSON of ``schema``. Raises InvalidRequest."""
        self._require("response_format")
        return self._guide(self._of_schema(schema, "response_format"), "response_format")

    def calls(self, tools: Sequence[OfferedTool], form: ToolFormat, *, several: bool) -> TextGuide:
        """For an answer that is calls of ``tools``. Raises InvalidRequest."""
        self._require("tool_choice")
        for tool in tools:
            self._guide(self._of_schema(tool.arguments_schema, "tools"), "tools")
        rules = [self._call_rule(index, tool, form) for index, tool in enumerate(tools)]
        call = " | ".join(f"call_{index}" for index in range(len(tools)))
        begin, end = self._mark(form.value), self._mark(form.end)
        if form is ToolFormat.HERMES:
            start = f'start: one ("\\n" one)*\none: {begin} "\\n" call "\\n" {end}'
        elif form is ToolFormat.LLAMA:
            start = "start: call"
        elif self._names_first:
            start = f"start: one+\none: {begin} call"
        else:
            start = f'start: {begin} "[" call (", " call)* "]"'
        if not several:
            start = start.replace(' ("\\n" one)*', "").replace("one+", "one").replace(' (", " call)*', "")
        grammar = "\n".join(["%llguidance {}", start, f"call: {call}", *rules])
        return self._guide(_library("tool_choice").LLMatcher.grammar_from_lark(grammar), "tools")

    def _call_rule(self, index: int, tool: OfferedTool, form: ToolFormat) -> str:
        schema = closed(tool.arguments_schema) | {"x-guidance": _JSON_STYLE}
        arguments = f"%json {_json(schema)}"
        if form is ToolFormat.MISTRAL and self._names_first:
            return f"call_{index}: {_json(tool.name)} {self._mark(ARGS)} {arguments}"
        member = "parameters" if form is ToolFormat.LLAMA else "arguments"
        opening = f'{{"name": {_json(tool.name)}, "{member}": '
        return f'call_{index}: {_json(opening)} {arguments} "}}"'

    @property
    def _names_first(self) -> bool:
        """Mistral's newer way."""
        return self._token(ARGS) is not None

    def _mark(self, text: str) -> str:
        """In a grammar: the token that it is, or else the text."""
        token = self._token(text)
        return _json(text) if token is None else f"<[{token}]>"

    def _token(self, text: str) -> int | None:
        return self._model.tokenizer.get_added_vocab().get(text)  # type: ignore[no-any-return]

    def _of_schema(self, schema: Mapping[str, Any] | bool, param: str) -> str:
        """The grammar. Raises InvalidRequest."""
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        try:
            if len(_json(schema)) > _SCHEMA_BYTES:
                raise InvalidRequest(f"{param} has a schema of more than {_SCHEMA_BYTES} bytes.", param=param)
            text = _json(closed(schema))
            return str(_library(param).LLMatcher.grammar_from_json_schema(text, defaults=_JSON_STYLE))
        except (orjson.JSONEncodeError, ValueError) as error:  # it is nested too deeply
            raise _unkept(param, error) from error

    def _guide(self, grammar: str, param: str) -> TextGuide:
        matcher = _library(param).LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise _unkept(param, matcher.get_error())
        end_ids = sorted(self._model.eos_ids)
        return TextGuide(matcher, JSONPosition(self._starts), TextEnding(self._starts, end_ids), end_ids)

    def _require(self, param: str) -> None:
        """Raises InvalidRequest if there is nothing to hold an answer to a grammar with."""
        _library(param)
        if not self._model.eos_ids:
            raise InvalidRequest(f"{param} cannot be kept: the model has no token for the end.", param=param)

    @cached_property
    def _tokenizer(self) -> Any:
        from llguidance.hf import from_tokenizer

        return from_tokenizer(
            self._model.tokenizer, n_vocab=self._model.vocabulary, eos_token=sorted(self._model.eos_ids)
        )

    @cached_property
    def _starts(self) -> TokenStarts:
        return TokenStarts([self._tokenizer.decode_bytes([token]) for token in range(self._model.vocabulary)])


def is_available() -> bool:
    """Whether the library is installed; nothing of it is imported."""
    return find_spec("llguidance") is not None


def _unkept(param: str, reason: object) -> InvalidRequest:
    return InvalidRequest(f"{param} has a schema that cannot be kept: {reason}", param=param)


def _library(param: str) -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise InvalidRequest(
            f"{param} {NOT_INSTALLED}.", param=param, code="unsupported_parameter"
        ) from error
    return llguidance


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
