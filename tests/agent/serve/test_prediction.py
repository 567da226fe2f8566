"""Computing batches in a model's process, without the process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.serve import END, Batch, Model
from agent.serve.messages import BatchDone, ModelFault, Outputs, PredictOrder, ProgressReport
from agent.serve.parcels import Parcel, ParcelWriter
from agent.serve.prediction import BatchRunner, WrongOutputs, checked
from tests.support.clock import ManualClock


class Runner:
    """Computes with a function in place of ``predict``."""

    def __init__(self, directory: Path, predict: Callable[[Model, Batch], Any], clock: ManualClock) -> None:
        self.writer = ParcelWriter(directory, "p1")
        self.sent: list[NamedTuple] = []
        kind = type("Played", (Model,), {"predict": predict})
        self.runner = BatchRunner(kind(), self.writer, self.sent.append, clock)

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
def make(tmp_path: Path, clock: ManualClock) -> Callable[..., Runner]:
    return lambda predict: Runner(tmp_path, predict, clock)


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


def test_progress_is_told_now_and_then_and_within_bounds(
    make: Callable[..., Runner], clock: ManualClock
) -> None:
    def predict(self: Model, batch: Batch) -> Any:
        self.report_progress(-1.0, "w" * 1000, b"x" * 1_000_000)
        self.report_progress(0.5)
        clock.advance(1.0)
        self.report_progress(None, "second", b"small", index=1)
        self.report_progress(1.0)
        return list(batch)

    said = [message for message in make(predict).run("a", "b") if isinstance(message, ProgressReport)]
    assert [(report.items, report.fraction) for report in said] == [
        ((10, 11), 0.0),
        ((11,), None),
        ((10, 11), 1.0),
    ]
    assert said[0].preview is None
    assert len(said[0].words) == 200
    assert said[1].preview == b"small"
