"""What a translation consists of, and which routes an engine gains by it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shared.protocol.routes import Route, need_of, route_of

CHAT_PATH = "/v1/chat/completions"

JsonObject = dict[str, Any]


class Untranslatable(Exception):
    """The request asks for something that chat completions have no words for, or is none of its dialect.

    ``param`` names the member at fault.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """Some of a tool call: its name comes with the first piece, its arguments in any number of them."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """What a chat completion says of its tokens."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    """How many of the prompt's were not computed again."""
    reasoning: int = 0
    """How many of the completion's were reasoning."""


@dataclass(slots=True)
class ChatAnswer:
    """A chat completion in one piece, or what a stream of one has said."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCallPiece] = field(default_factory=list)
    finish: str = "stop"
    stop: str | None = None
    """The stop string that ended it, where the engine says so."""
    usage: ChatUsage = field(default_factory=ChatUsage)


class EventWriter(Protocol):
    """Writes the events of one streamed answer. Gives bytes that are whole events."""

    def begin(self) -> bytes:
        """The answer begins. Called once, before anything else."""

    def reasoning(self, text: str) -> bytes:
        """More of what the model thinks before it answers."""

    def text(self, text: str) -> bytes:
        """More of the text."""

    def call(self, piece: ToolCallPiece) -> bytes:
        """More of a tool call."""

    def end(self, finish: str, stop: str | None, usage: ChatUsage) -> bytes:
        """The answer is whole."""

    def fail(self, status: int, error: JsonObject) -> bytes:
        """The engine broke off with an error."""


class AnswerWriter(Protocol):
    """Writes the answer to one request."""

    def whole(self, answer: ChatAnswer) -> JsonObject:
        """The answer in one piece."""

    def events(self) -> EventWriter:
        """For the answer as a stream."""


@dataclass(frozen=True, slots=True)
class Translation:
    """One path and how its requests are translated."""

    route: str
    path: str
    request: Callable[[JsonObject], JsonObject]
    """The request of chat completions for a request of this dialect. Raises :class:`Untranslatable`."""
    answer: Callable[[JsonObject], AnswerWriter]
    """The writer for the answer to a request of this dialect. Raises ``orjson.JSONEncodeError`` where the
    answer repeats what cannot be written."""
    error: Callable[[int, JsonObject], JsonObject]
    """An error's body for a status and OpenAI's error object."""

    @property
    def need(self) -> str:
        """The need of its requests (:mod:`shared.protocol.routes`)."""
        return need_of(self.route, self.path)


def translated_needs(
    routes: Collection[str], lacks: Collection[str], dialects: Mapping[str, Translation]
) -> tuple[str, ...]:
    """The needs that an engine with these ``routes``, without what it ``lacks``, gains by translation."""
    if Route.CHAT.value not in routes or Route.CHAT.value in lacks:
        return ()
    return tuple(each.need for each in dialects.values() if each.route not in routes or each.need in lacks)


def with_translated(
    routes: tuple[str, ...], lacks: tuple[str, ...], translated: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """``routes`` and ``lacks`` with the ``translated`` needs: these paths are there, others of routes that
    the engine does not have are not."""
    gained = [route for route in dict.fromkeys(map(route_of, translated)) if route not in routes]
    others = [f"{route}{path}" for route in gained for path in Route(route).facts.others]
    missing = [need for need in (*lacks, *others) if need not in translated]
    return (*routes, *gained), tuple(dict.fromkeys(missing))


def text_member(value: JsonObject, name: str) -> str:
    """A member that is text; empty where there is none."""
    found = value.get(name)
    return found if isinstance(found, str) else ""


def object_in(value: Any, where: str) -> JsonObject:
    """``value`` if it is a JSON object. Raises :class:`Untranslatable`."""
    if not isinstance(value, dict):
        raise Untranslatable(f"{where} must be an object.", where)
    return value


def list_in(value: Any, where: str) -> list[Any]:
    """``value`` if it is a list. Raises :class:`Untranslatable`."""
    if not isinstance(value, list):
        raise Untranslatable(f"{where} must be a list.", where)
    return value


def refuse(request: JsonObject, unmeant: Mapping[str, tuple[Any, ...]], path: str) -> None:
    """Raises :class:`Untranslatable` for members of ``request`` that are named in ``unmeant``, unless they
    are null or one of the values there."""
    for name, harmless in unmeant.items():
        value = request.get(name)
        if value is not None and value not in harmless:
            raise untranslatable(name, path)


def untranslatable(what: str, path: str) -> Untranslatable:
    """For a member or a kind of content that only an engine with ``path`` of its own knows."""
    return Untranslatable(
        f"{what!r} is not supported here: this model's engine has {CHAT_PATH} and not {path}, and what is"
        f" translated has no such thing. Leave it out, or ask a model whose engine has {path}.",
        what,
    )
