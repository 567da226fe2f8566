"""What a model of your own is written with. Nothing here imports more than the standard library and
orjson."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final

import orjson

from shared.process.request_errors import BadRequest

PREDICT_PATH = "/predict"
"""At the gateway ``/engines/{name}/predict``. Every model has it."""


class StreamMark(Enum):
    """What an entry of a yielded list may be instead of an output."""

    END = "end"


END: Final = StreamMark.END
"""In a list that ``predict`` yields: this item's stream is complete."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One HTTP request."""

    path: str
    """Without the query: ``/predict``, ``/v1/embeddings``, …"""
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    model: str = ""
    """The name that the client asked for, one of ``Model.models``."""
    query: str = ""
    method: str = "POST"

    def json(self) -> Any:
        """The body as JSON. Raises :class:`BadRequest` when it is none."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise BadRequest("The body is not JSON.", code="invalid_json") from None


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """What ``encode`` returns to say more than the body: bytes, text, or what can be written as JSON."""

    body: Any
    content_type: str | None = None
    """By default as the body suggests: JSON, ``text/plain`` or ``application/octet-stream``."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class Batch(list[Any]):
    """The items of one call of ``predict``, in order."""

    def __init__(
        self, items: Iterable[Any] = (), is_cancelled: Callable[[int], bool] = lambda index: False
    ) -> None:
        super().__init__(items)
        self._is_cancelled = is_cancelled

    def is_cancelled(self, index: int) -> bool:
        """Whether nobody waits for the output of the item at ``index`` any more."""
        return self._is_cancelled(index)


Reporter = Callable[[float | None, str, bytes | bytearray | memoryview | None, int | None, str], None]


def _unreported(
    fraction: float | None,
    words: str = "",
    preview: bytes | bytearray | memoryview | None = None,
    index: int | None = None,
    media_type: str = "",
) -> None:
    """Nobody is told."""


class Model:
    """A model to serve. A subclass overrides :meth:`predict`, and of the rest what it needs.

    ``prepare`` runs once in every process. ``decode``, ``length`` and ``encode`` run in processes for the
    CPU, which have no device and never call ``load``. ``load``, ``warm_up`` and ``predict`` run in one
    process for each device. What goes from one hook to the next is pickled; arrays, CPU tensors and large
    bytes go through shared memory.
    """

    name: ClassVar[str] = ""
    """The model's name for clients. Default: the class's, in lower case, words joined by ``-``."""
    models: ClassVar[tuple[str, ...]] = ()
    """Several names for it; ``ModelRequest.model`` says which was asked for. Default: ``name`` alone."""
    routes: ClassVar[tuple[str, ...]] = ()
    """Paths beside ``/predict``: ``/v1/embeddings``, ``/v1/rerank``, ``/v1/classify``, or any other."""

    capabilities: ClassVar[tuple[str, ...]] = ()
    """What it can do, in words for clients, who see them in ``/v1/models``: ``image-classification``, …"""

    max_batch: int = 1
    """Most items in one call of ``predict``."""
    max_wait_s: float = 0.01
    """How long the first item of a batch waits for others at most, in seconds: so long for requests that are
    being decoded, else no longer than a batch took of late."""
    max_queue: int = 256
    """Requests that may wait, beside those that are computed; one more is answered with 429."""
    timeout_s: float = 60.0
    """How long one call of a hook may take, or in a stream the time from one yield to the next, in
    seconds."""
    load_timeout_s: float = 600.0
    """How long ``prepare``, ``load`` and ``warm_up`` may take together, in seconds."""
    max_body_bytes: int = 64 * 1024 * 1024
    """Longest body of a request."""
    slots: int | None = None
    """Requests that the gateway may send at once. Default: two batches for each device."""
    workers: int | None = None
    """Processes for ``decode`` and ``encode``. Default: as many as there are CPUs, at most 4."""

    report: Reporter = staticmethod(_unreported)
    """Set by the process that computes; called by :meth:`report_progress`."""

    def prepare(self) -> None:
        """What every process needs: a tokenizer, a table of labels."""

    def load(self, device: str) -> None:
        """Load the model onto ``device``: ``cpu``, ``cuda:0``, …"""

    def warm_up(self) -> None:
        """Compute once before the first request, for instance ``self.predict([…])``."""

    def decode(self, request: ModelRequest) -> Any:
        """The item for ``predict``. By default the body's JSON. Raises BadRequest for a request that no item
        can be made of: its client gets 400 with the message."""
        return request.json()

    def length(self, item: Any) -> float | None:
        """How long an item is: what waits longest is computed with those that are most alike in length. None:
        that does not matter."""
        return None

    def predict(self, batch: Batch) -> Any:
        """The outputs, one for each item and in the same order. Or yields lists like that, of the next output
        of each item's stream: None where there is nothing now, :data:`END` where it is complete."""
        raise NotImplementedError

    def encode(self, output: Any) -> Any:
        """The response: what can be written as JSON, bytes, text, or a :class:`ModelResponse`. Of a stream
        one event: bytes as they are, anything else as a server-sent event."""
        return output

    def report_progress(
        self,
        fraction: float | None,
        words: str = "",
        preview: bytes | bytearray | memoryview | None = None,
        *,
        index: int | None = None,
        media_type: str = "",
    ) -> None:
        """Say in ``predict`` how much is done: ``fraction`` (0 to 1; None: not known), a line of words, and a
        ``preview`` of what there is so far: at most 16 KiB, a JPEG, PNG, WebP or GIF, or of the given
        ``media_type``. It concerns the item at ``index`` of the batch, or all of them.

        May be called as often as there is something new, from any thread: the newest is told, ten times a
        second at most, and six times with previews. Raises nothing; what cannot be told is left out and
        logged once."""
        self.report(fraction, words, preview, index, media_type)


def name_of_class(name: str) -> str:
    """The default name of a model whose class has this one: ``ImageClassifier`` → ``image-classifier``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower().strip("_-")
