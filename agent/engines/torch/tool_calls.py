"""Calls of tools in what a model writes, found while it writes. Pure.

Three ways of writing them are known, by the marks in the model's chat template: that of Hermes and Qwen,
Mistral's (a list of calls, and since its tokenizers of version 11 a name before each object), and Llama 3's,
whose whole answer is the call. A template without any of them counts as Hermes'.
"""

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import orjson

from agent.engines.torch.shapes import CallDelta

_ARGUMENTS = ("arguments", "parameters")
_MISTRAL_ID_CHARS = 9
"""Mistral's templates take no other length."""
_NAME_CHARS = frozenset(string.ascii_letters + string.digits + "_.:-")


class ToolFormat(Enum):
    """How a model writes calls. The value is what begins them."""

    HERMES = "<tool_call>"
    MISTRAL = "[TOOL_CALLS]"
    LLAMA = "<|python_tag|>"

    @property
    def end(self) -> str:
        return "</tool_call>" if self is ToolFormat.HERMES else ""

    def new_id(self) -> str:
        if self is not ToolFormat.MISTRAL:
            return f"call_{secrets.token_hex(12)}"
        alphabet = string.ascii_letters + string.digits
        return "".join(secrets.choice(alphabet) for _ in range(_MISTRAL_ID_CHARS))


ARGS = "[ARGS]"
"""Between name and arguments, in Mistral's newer way."""
_CALL_ID = "[CALL_ID]"


def tool_format(template: str) -> ToolFormat:
    """The way in which a model with this chat template writes calls."""
    if ToolFormat.HERMES.value in template:
        return ToolFormat.HERMES
    if ToolFormat.MISTRAL.value in template:
        return ToolFormat.MISTRAL
    if ToolFormat.LLAMA.value in template or "ipython" in template:
        return ToolFormat.LLAMA
    return ToolFormat.HERMES


@dataclass(slots=True)
class TextOrCalls:
    text: str = ""
    calls: tuple[CallDelta, ...] = ()


class ToolCallReader:
    """Takes a text apart into what is said and what is called, piece by piece.

    ``begun``: the text goes on with one that was begun elsewhere, so it does not begin here. ``several``
    False: the text is over after one call. ``named``: the client named the function that must be called.
    """

    def __init__(
        self, form: ToolFormat, *, begun: bool = False, several: bool = True, named: bool = False
    ) -> None:
        self._form = form
        self._several = several
        self._named = named
        self._held = ""
        """Not understood yet."""
        self._calls = 0
        self._call: _CallScanner | None = None
        self._list = False
        """In a list of calls."""
        self._step: Callable[[TextOrCalls], bool] = self._look_for_begin
        if form is ToolFormat.LLAMA and not begun:
            self._step = self._look_at_begin

    @property
    def complete(self) -> bool:
        """Nothing more is to be written: there is the one call that may be."""
        return not self._several and self._calls > 0 and self._call is None

    def push(self, text: str) -> list[TextOrCalls]:
        """What can be told of ``text`` and what was held back before it."""
        self._held += text
        found: list[TextOrCalls] = []
        while not self.complete:
            delta = TextOrCalls()
            going_on = self._step(delta)
            if delta.text or delta.calls:
                found.append(delta)
            if not going_on:
                break
        return found

    def finish(self) -> TextOrCalls:
        """What was held back and is no call."""
        rest, self._held = self._held, ""
        if self._call is not None:
            rest = self._call.taken if not self._call.announced else ""
        return TextOrCalls("" if self.complete or self._after_call() else rest)

    def finish_reason(self, reason: str) -> str:
        """OpenAI's: of a text that ends with a call it is the call, unless the client named its function."""
        return "tool_calls" if reason == "stop" and self._calls and not self._named else reason

    # --- Steps: each takes of what is held, adds to the delta, and says whether another step can be taken

    def _look_at_begin(self, delta: TextOrCalls) -> bool:
        text = self._held.lstrip()
        mark = self._form.value
        if not text or (mark.startswith(text) and text != mark):
            return False
        if text.startswith(mark):
            text = text[len(mark) :].lstrip()
            if not text:
                return False
        if not text.startswith("{"):
            self._step = self._say_all
            return True
        self._held = text
        self._begin_call()
        return True

    def _say_all(self, delta: TextOrCalls) -> bool:
        delta.text, self._held = self._held, ""
        return False

    def _look_for_begin(self, delta: TextOrCalls) -> bool:
        before, mark, after = self._held.partition(self._form.value)
        if mark:
            delta.text, self._held = before, after
            self._step = self._look_for_call
            return True
        held = _partial(self._held, self._form.value)
        cut = len(self._held) - held
        delta.text, self._held = self._held[:cut], self._held[cut:]
        return False

    def _look_for_call(self, delta: TextOrCalls) -> bool:
        """After a mark."""
        self._held = self._held.lstrip()
        if not self._held:
            return False
        first = self._held[0]
        if first == "{":
            self._begin_call()
        elif first == "[" and self._form is ToolFormat.MISTRAL:
            self._held, self._list = self._held[1:], True
        elif self._form is ToolFormat.MISTRAL and first in _NAME_CHARS:
            return self._read_name()
        else:
            self._held = self._form.value + self._held
            self._step = self._say_all
        return True

    def _read_name(self) -> bool:
        """Mistral's newer way: the name, perhaps an id, and the arguments."""
        end = self._held.find("{")
        if end < 0:
            return False
        name = self._held[:end].replace(ARGS, "").partition(_CALL_ID)[0].strip()
        self._held = self._held[end:]
        self._call = _CallScanner(name=name)
        self._step = self._read_call
        return True

    def _begin_call(self) -> None:
        self._call = _CallScanner()
        self._step = self._read_call

    def _read_call(self, delta: TextOrCalls) -> bool:
        call = self._call
        assert call is not None
        used = call.push(self._held)
        self._held = self._held[used:]
        if call.name is not None:
            first = CallDelta(self._calls, self._form.new_id(), call.name)
            arguments = call.take_arguments() or ("{}" if call.done and not call.had_arguments else "")
            if not call.announced:
                call.announced = True
                delta.calls = (CallDelta(first.index, first.id, first.name, arguments),)
            elif arguments:
                delta.calls = (CallDelta(self._calls, arguments=arguments),)
        if not call.done:
            return False
        if not call.announced:
            delta.text = call.taken  # an object that is no call
        else:
            self._calls += 1
        self._call = None
        self._step = self._look_for_next
        return True

    def _look_for_next(self, delta: TextOrCalls) -> bool:
        """After a call: the end mark or a separator, and another call or text."""
        if self._form is ToolFormat.HERMES:
            _, mark, after = self._held.partition(self._form.end)
            if not mark:
                return False
            self._held = after
            self._step = self._look_after_end
            return True
        text = self._held.lstrip(" \n\t,;")
        if not text:
            return False
        self._held = text
        if text[0] == "{" and (self._list or self._form is ToolFormat.LLAMA):
            self._begin_call()
        elif self._list and text[0] == "]":
            self._held, self._list = text[1:], False
            self._step = self._look_for_begin
        else:
            self._step = self._look_for_begin
        return True

    def _look_after_end(self, delta: TextOrCalls) -> bool:
        """White space between calls is not text."""
        self._held = self._held.lstrip()
        if self._held:
            self._step = self._look_for_begin
        return bool(self._held)

    def _after_call(self) -> bool:
        return self._step in (self._look_for_next, self._look_after_end) and not self._held.strip()


@dataclass(slots=True)
class _CallScanner:
    """Reads the object of a call as it comes: its name, and the JSON of its arguments as it is written.

    With a ``name`` the object itself is the arguments."""

    name: str | None = None
    done: bool = False
    announced: bool = False
    taken: str = ""
    """All that was read, as long as no name is known."""
    had_arguments: bool = False
    _arguments: list[str] = field(default_factory=list)
    _depth: int = 0
    _in_string: bool = False
    _escaped: bool = False
    _lexeme: str = ""
    _key: str = ""
    _in_value: bool = False
    _bare: bool = False
    """The object is the arguments."""

    def __post_init__(self) -> None:
        self._bare = self.name is not None

    def take_arguments(self) -> str:
        taken, self._arguments = "".join(self._arguments), []
        return taken

    def push(self, text: str) -> int:
        """How many characters belong to the call."""
        for index, character in enumerate(text):
            if self._in_string:
                self._string(character)
            else:
                self._structure(character)
            if not self.announced:
                self.taken += character
            if self.done:
                return index + 1
        return len(text)

    @property
    def _wanted(self) -> bool:
        """What comes now is of the arguments."""
        return self._bare or (self._in_value and self._key in _ARGUMENTS)

    def _emit(self, text: str) -> None:
        self._arguments.append(text)
        self.had_arguments = True

    def _string(self, character: str) -> None:
        whole = self._wanted and self._depth == 1 and not self._bare  # arguments that are written as a string
        self._lexeme += character
        if self._wanted and not whole:
            self._emit(character)
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            if self._depth == 1 and not self._bare:
                self._end_string(whole)

    def _end_string(self, arguments: bool) -> None:
        try:
            value = str(orjson.loads(self._lexeme))
        except orjson.JSONDecodeError:
            value = self._lexeme[1:-1]
        if arguments:
            self._emit(value)
        elif not self._in_value:
            self._key = value
        elif self._key == "name":
            self.name = value

    def _structure(self, character: str) -> None:
        opening, closing = character in "{[", character in "}]"
        depth, outer = self._depth, 0 if self._bare else 1
        self._depth += opening - closing
        self.done = closing and self._depth <= 0
        if self._wanted and (depth > outer or (opening and depth == outer)):
            self._emit(character)
        if character == '"':
            self._in_string, self._lexeme = True, '"'
        elif depth == 1 and character in ":,":
            self._in_value = character == ":"


def _partial(text: str, mark: str) -> int:
    """How many characters at the end of ``text`` begin ``mark``."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)
