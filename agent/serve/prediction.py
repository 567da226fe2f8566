"""A model's process for one device: computes batches, one after the other."""

import gc
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import GeneratorType
from typing import Any, NamedTuple

from agent.serve.codec import fault_of
from agent.serve.messages import BatchDone, ModelFault, Outputs, PredictOrder
from agent.serve.model import END, Batch, Model
from agent.serve.parcels import Parcel, ParcelWriter
from agent.serve.progress import ProgressTeller

_log = logging.getLogger("model")

DROPPED = 4096
"""So many items that nobody waits for are remembered; some of them were over before that was known here."""

Send = Callable[[NamedTuple], None]


class WrongOutputs(Exception):
    """``predict`` gave something else than one output for each item."""


class BatchRunner:
    """Has ``model`` compute batches; ``send`` takes what comes of them.

    :meth:`drop` may be called from another thread at any time.
    """

    def __init__(
        self, model: Model, writer: ParcelWriter, send: Send, progress: ProgressTeller | None = None
    ) -> None:
        self._model = model
        self._writer = writer
        self._send = send
        self._progress = progress or ProgressTeller(send)
        self._dropped: set[int] = set()
        model.report = self._progress.report

    def drop(self, item: int) -> None:
        """Nobody waits for this item any more."""
        if len(self._dropped) >= DROPPED:
            self._dropped.clear()
        self._dropped.add(item)

    def run(self, order: PredictOrder) -> None:
        """Compute a batch to its end. Never raises an Exception."""
        fault: ModelFault | None = None
        try:
            self._run(order)
        except WrongOutputs as error:
            _log.error("%s", error)
            fault = ModelFault("count", str(error))
        except Exception as error:
            fault = fault_of(error, "predict")
            if fault.kind == "memory":
                error.__traceback__ = None  # its frames hold the tensors of the batch
        finally:
            self._dropped.difference_update(number for number, _ in order.items)
            self._progress.end()
        if fault is not None and fault.kind == "memory":
            _free_memory()
        self._send(BatchDone(order.batch, fault))

    def _run(self, order: PredictOrder) -> None:
        items = [(n, value) for n, parcel in order.items for value in self._unpacked(n, parcel)]
        if not items:
            return
        numbers = tuple(number for number, _ in items)
        self._progress.begin(numbers)
        batch = Batch((value for _, value in items), lambda index: numbers[index] in self._dropped)
        items.clear()
        result = self._model.predict(batch)
        if isinstance(result, GeneratorType):
            self._stream(order.batch, numbers, result)
        else:
            outputs = tuple(zip(numbers, map(self._packed, checked(result, len(numbers))), strict=True))
            self._progress.end()
            self._send(Outputs(order.batch, outputs))

    def _stream(self, batch: int, numbers: Sequence[int], steps: Iterator[Any]) -> None:
        """Pass on what ``predict`` yields, until it ends or nobody waits for more."""
        left = set(numbers)
        try:
            for step in steps:
                outputs, complete = [], []
                for number, value in zip(numbers, checked(step, len(numbers)), strict=True):
                    if number not in left or number in self._dropped:
                        left.discard(number)
                    elif value is END:
                        left.discard(number)
                        complete.append(number)
                    elif value is not None:
                        outputs.append((number, self._packed(value)))
                self._send(Outputs(batch, tuple(outputs), True, tuple(complete)))
                if not left - self._dropped:
                    break
        finally:
            with suppress(AttributeError):
                steps.close()  # type: ignore[attr-defined]
        self._send(Outputs(batch, (), True, tuple(left)))

    def _unpacked(self, number: int, parcel: Parcel) -> list[Any]:
        """The item, unless nobody waits for it: then its parcel may be gone as well."""
        if number in self._dropped:
            return []
        try:
            return [parcel.unpack()]
        except FileNotFoundError:
            return []

    def _packed(self, value: Any) -> Parcel | ModelFault:
        try:
            return self._writer.pack(value)
        except Exception as error:
            return fault_of(error, "pickling the output of predict")


def checked(result: Any, wanted: int) -> list[Any]:
    """The outputs as a list. Raises :class:`WrongOutputs`."""
    if result is None or isinstance(result, str | bytes | dict):
        what = "nothing" if result is None else f"a {type(result).__name__}"
        raise WrongOutputs(f"predict returned {what}, and not a list with one output for each item")
    try:
        outputs = list(result)
    except TypeError:
        raise WrongOutputs(
            f"predict returned a {type(result).__name__}, and not a list with one output for each item"
        ) from None
    if len(outputs) != wanted:
        raise WrongOutputs(f"predict returned {len(outputs)} outputs for a batch of {wanted}")
    return outputs


def _free_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
