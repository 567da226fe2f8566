"""Computing batches in a model's process, without the process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.serve import END, Batch, Model
from agent.serve.messages import BatchDone, ModelFault, Outputs, PredictOrder, ProgressReport
from agent.serve.parcels import Parcel, ParcelWriter
from agent.serve.prediction import BatchRunner, WrongOutputs, checked


class Runner:
    """Computes with a function in place of ``predict``."""

    def __init__(self, directory: Path, predict: Callable[[Model, Batch], Any]) -> None:
        self.writer = ParcelWriter(directory, "p1")
        self.sent: list[NamedTuple] = []
        kind = type("Played", (Model,), {"predict": predict})
        self.runner = BatchRunner(kind(), self.writer, self.sent.append)

    def run(self, *items: Any) -> list[Any]:
        """Items are numbered from 10. What was said, with parcels unpacked."""
        parcels = tuple((10 + place, self.writer.pack(item)) for place, item in enumerate(items))
        self.runner.run(PredictOrder(1, parcels))
        return [self._plain(message) for message in self.sent]

    def _plain(self, message: Any) -> Any:
        if isinstance(message, Outputs):
            outputs = {n: o.unpack() if isinstance(o, Parcel) else o.words for n, o in message.outputs}
            return (outputs, message.complete) if message.streamed else outputs
        return message.fault if isinstance(message, BatchDone) else message


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Runner]:
    return lambda predict: Runner(tmp_path, predict)


def test_each_item_gets_its_output(make: Callable[..., Runner]) -> None:
    assert make(lambda self, batch: [x * 2 for x in batch]).run(1, 2) == [{10: 2, 11: 4}, None]


def test_an_output_that_cannot_be_pickled_is_a_fault_of_its_own(make: Callable[..., Runner]) -> None:
    outputs, end = make(lambda self, batch: [1, lambda: 1]).run("a", "b")
    assert outputs[10] == 1
    assert "pickling the output of predict raised" in outputs[11]
    assert end is None


@pytest.mark.parametrize("result", [None, "ab", {"a": 1}, 7, [1], [1, 2, 3]])
def test_what_is_not_one_output_for_each_item_is_a_fault(result: Any, make: Callable[..., Runner]) -> None:
    (fault,) = make(lambda self, batch: result).run("a", "b")
    assert isinstance(fault, ModelFault)
    assert fault.kind == "count"
    assert "predict returned" in fault.words
    with pytest.raises(WrongOutputs):
        checked(result, 2)


def test_what_predict_raises_is_a_fault_and_memory_is_told_apart(make: Callable[..., Runner]) -> None:
    def fails(self: Model, batch: Batch) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB" if batch == ["much"] else "no")

    assert make(fails).run("much")[0].kind == "memory"
    assert make(fails).run("x")[0] == ModelFault("raised", "predict raised RuntimeError")


def test_a_stream_gives_outputs_step_by_step(make: Callable[..., Runner]) -> None:
    def predict(self: Model, batch: Batch) -> Iterator[list[Any]]:
        yield ["a1", "b1"]
        yield ["a2", END]
        yield ["a3", "too late"]

    assert make(predict).run("a", "b") == [
        ({10: "a1", 11: "b1"}, ()),
        ({10: "a2"}, (11,)),
        ({10: "a3"}, ()),
        ({}, (10,)),
        None,
    ]


def test_a_stream_ends_when_nobody_waits_for_it(make: Callable[..., Runner]) -> None:
    closed: list[bool] = []

    def predict(self: Model, batch: Batch) -> Iterator[list[Any]]:
        try:
            yield ["a1"]
            runner.runner.drop(10)
            assert batch.is_cancelled(0)
            yield ["a2"]
            yield ["never"]
        finally:
            closed.append(True)

    runner = make(predict)
    assert runner.run("a") == [({10: "a1"}, ()), ({}, ()), ({}, ()), None]
    assert closed == [True]


def test_dropped_items_are_not_computed(make: Callable[..., Runner]) -> None:
    runner = make(lambda self, batch: list(batch))
    runner.runner.drop(10)
    assert runner.run("a", "b") == [{11: "b"}, None]
    runner.sent.clear()
    assert runner.run("c") == [{10: "c"}, None]


def test_an_item_whose_parcel_is_gone_is_one_that_nobody_waits_for(make: Callable[..., Runner]) -> None:
    runner = make(lambda self, batch: list(batch))
    lost = Parcel((100,), file="/no/such/parcel")
    runner.runner.run(PredictOrder(1, ((10, lost), (11, runner.writer.pack("b")))))
    assert [runner._plain(message) for message in runner.sent] == [{11: "b"}, None]


def test_the_last_that_is_said_of_progress_is_told_before_the_output(make: Callable[..., Runner]) -> None:
    def predict(self: Model, batch: Batch) -> Any:
        for step in range(10_001):
            self.report_progress(step / 10_000, "all of it" if step == 10_000 else "")
        return list(batch)

    said = make(predict).run("a", "b")
    reports = [message for message in said if isinstance(message, ProgressReport)]
    assert reports[0] == ProgressReport((10, 11), 0.0, "", None)
    assert said[-3:] == [ProgressReport((10, 11), 1.0, "all of it", None), {10: "a", 11: "b"}, None]


def test_what_cannot_be_told_of_progress_fails_no_request(make: Callable[..., Runner]) -> None:
    def predict(self: Model, batch: Batch) -> Any:
        self.report_progress("half", object(), 7, index="x")  # type: ignore[arg-type]
        return list(batch)

    assert make(predict).run("a") == [{10: "a"}, None]
