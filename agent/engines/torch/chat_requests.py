"""Request bodies of chat: messages, tools, and how the answer is to be. Pure."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator

from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.parsing import TOP_LOGPROBS, Integer, TextRequest, TokenCount

_MESSAGES = 4096
_TOOLS = 1024
_MESSAGE_WITHOUT_EFFECT = frozenset({"refusal", "annotations"})


class TextPart(BaseModel):
    type: Literal["text"]
    text: StrictStr


class CalledFunction(BaseModel):
    """``arguments`` is JSON, as the model wrote it."""

    name: StrictStr
    arguments: StrictStr = "{}"


class MadeToolCall(BaseModel):
    """A call of an earlier turn."""

    id: StrictStr | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def plain(self) -> dict[str, Any]:
        """As chat templates take it: arguments are an object, if they are the JSON of one."""
        try:
            arguments = orjson.loads(self.function.arguments)
        except orjson.JSONDecodeError:
            arguments = self.function.arguments
        function = {"name": self.function.name, "arguments": arguments}
        return {"type": "function", "function": function} | ({} if self.id is None else {"id": self.id})


class Message(BaseModel):
    """One message of a chat. :class:`ChatRequest` looks at members that are not known here."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="system, developer, user, assistant or tool"
    )
    content: StrictStr | list[TextPart] | None = Field(
        default=None, description="a string or a list of text parts: this engine reads text"
    )
    tool_calls: list[MadeToolCall] | None = Field(
        default=None, description="a list of calls of functions, each with its name and arguments"
    )
    tool_call_id: StrictStr | None = None
    name: StrictStr | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str | None):
            return self.content or ""
        return "".join(part.text for part in self.content)

    def plain(self) -> dict[str, Any]:
        """As chat templates take it."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.text,
        }
        if self.tool_calls:
            message["tool_calls"] = [call.plain() for call in self.tool_calls]
        if self.role == "tool":
            named = {"tool_call_id": self.tool_call_id, "name": self.name}
            message |= {name: value for name, value in named.items() if value is not None}
        return message


class OfferedFunction(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = None


class OfferedTool(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["function"] = Field(description="function: this engine runs no tools itself")
    function: OfferedFunction

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def arguments_schema(self) -> dict[str, Any]:
        return self.function.parameters or {"type": "object", "properties": {}}

    def plain(self) -> dict[str, Any]:
        """As chat templates take it."""
        return {
            "type": "function",
            "function": self.function.model_dump(exclude_none=True, exclude={"strict"}),
        }


class NamedFunction(BaseModel):
    name: StrictStr


class NamedTool(BaseModel):
    type: Literal["function"]
    function: NamedFunction


class ChatRequest(TextRequest):
    """``continue_final_message``: the last message is the beginning of the answer, not one to answer.
    ``continued_max_tokens``: how long the whole answer may be, that beginning included; ``max_tokens`` then
    says nothing."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=_MESSAGES, repr=False)]
    max_completion_tokens: TokenCount | None = None
    add_generation_prompt: StrictBool = True
    continue_final_message: StrictBool = False
    continued_max_tokens: TokenCount | None = None
    logprobs: StrictBool = False
    top_logprobs: Annotated[Integer, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    tools: Annotated[list[OfferedTool], Field(max_length=_TOOLS)] = Field(
        default=[], repr=False, description="a list of functions, each with a name and its parameters"
    )
    tool_choice: Literal["none", "auto", "required"] | NamedTool = Field(
        default="auto", description="none, auto, required, or a function with its name"
    )
    parallel_tool_calls: StrictBool = True

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def offered(self) -> list[OfferedTool]:
        """The tools that the model may call."""
        if isinstance(self.tool_choice, NamedTool):
            return [tool for tool in self.tools if tool.name == self.tool_choice.function.name]
        return [] if self.tool_choice == "none" else self.tools

    @property
    def demands_call(self) -> bool:
        """The answer must be a call. ``response_format`` is then of no effect: there is no text."""
        return self.tool_choice not in ("none", "auto")

    @classmethod
    def _expected(cls, name: str, place: Sequence[int | str]) -> tuple[str, str | None]:
        if name != "messages" or not place:
            return super()._expected(name, place)
        member = place[1] if len(place) > 1 else None
        param = f"messages[{place[0]}]" + ("" if member is None else f".{member}")
        field = Message.model_fields.get(str(member))
        return param, "an object with a role and a content" if field is None else field.description

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs are allowed only with logprobs=true.", param="top_logprobs")
        if self.demands_call and not self.offered:
            raise InvalidRequest("tool_choice demands a tool that is not in tools.", param="tool_choice")
        return self

    @model_validator(mode="after")
    def _settle(self) -> Self:
        self.max_tokens = self.max_completion_tokens or self.max_tokens
        for index, message in enumerate(self.messages):
            _check_message(message, f"messages[{index}]")
        if not self.continue_final_message:
            return self
        if self.messages[-1].tool_calls:
            raise InvalidRequest(
                "An answer that has called a tool cannot be continued.", param="continue_final_message"
            )
        if "add_generation_prompt" in self.model_fields_set and self.add_generation_prompt:
            raise InvalidRequest(
                "add_generation_prompt and continue_final_message exclude each other.",
                param="continue_final_message",
            )
        self.add_generation_prompt = False
        return self


def _check_message(message: Message, place: str) -> None:
    for name, value in (message.model_extra or {}).items():
        if name not in _MESSAGE_WITHOUT_EFFECT and value not in (None, []):
            raise InvalidRequest(f"This engine does not support {place}.{name}.", param=f"{place}.{name}")
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest(f"{place}.tool_calls are for the assistant.", param=f"{place}.tool_calls")
    if message.content is None and not message.tool_calls:
        wanted = Message.model_fields["content"].description
        raise InvalidRequest(f"{place}.content must be {wanted}.", param=f"{place}.content")
