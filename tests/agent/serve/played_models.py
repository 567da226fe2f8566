"""Models that behave, and models that do not, for the tests of :mod:`agent.serve`."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.serve import END, BadRequest, Batch, Model, ModelRequest, ModelResponse


class Echo(Model):
    """Gives back what it gets."""

    max_batch = 8
    max_wait_s = 0.002
    workers = 1
    timeout_s = 20.0

    def predict(self, batch: Batch) -> Any:
        return list(batch)


class Counter(Echo):
    """Streams 1, 2, … up to the number it is given; below 0 for ever."""

    def predict(self, batch: Batch) -> Iterator[list[Any]]:
        step = 0
        while True:
            step += 1
            yield [END if 0 <= wanted < step else step for wanted in batch]
            if any(wanted < 0 for wanted in batch):
                time.sleep(0.002)


class BreakingOff(Counter):
    """Fails once it has streamed 1."""

    def predict(self, batch: Batch) -> Iterator[list[Any]]:
        yield [1 for _ in batch]
        raise ValueError("no more")


class Unloadable(Echo):
    def load(self, device: str) -> None:
        raise ValueError("no weights here")


class Unprepared(Echo):
    def prepare(self) -> None:
        raise ValueError("no tokenizer here")


class Moody(Echo):
    """Fails as its items ask for."""

    timeout_s = 1.0
    max_wait_s = 0.05

    def decode(self, request: ModelRequest) -> Any:
        item = super().decode(request)
        if item == "refused in decode":
            raise BadRequest("This is refused.")
        if item == "raise in decode":
            raise RuntimeError("decode is out of order")
        if item == "crash in decode":
            os.kill(os.getpid(), signal.SIGKILL)
        if item == "hang in decode":
            threading.Event().wait()
        return item

    def predict(self, batch: Batch) -> Any:
        if "raise in predict" in batch:
            raise RuntimeError("predict is out of order")
        if "refused in predict" in batch:
            raise BadRequest("This is refused by predict.", code="odd")
        if "crash" in batch:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "exit" in batch:
            raise SystemExit(7)
        if "hang" in batch:
            threading.Event().wait()
        if "memory" in batch:
            raise MemoryError
        if "too few" in batch:
            return list(batch)[1:]
        if "too many" in batch:
            return [*batch, None]
        if "nothing" in batch:
            return None
        return list(batch)

    def encode(self, output: Any) -> Any:
        if output == "raise in encode":
            raise RuntimeError("encode is out of order")
        if output == "status":
            return ModelResponse({"said": "created"}, status=201, headers={"x-said": "yes"})
        if output == "unwritable":
            return object()
        return ModelResponse(output, content_type="application/json") if output is None else _as_json(output)


def _as_json(output: Any) -> Any:
    import orjson

    return ModelResponse(orjson.dumps(output), content_type="application/json")


class Narrow(Echo):
    """Has memory for two items at once; says how many there were."""

    def predict(self, batch: Batch) -> Any:
        if len(batch) > 2:
            raise MemoryError
        return [{"item": item, "batch": len(batch)} for item in batch]


class Gated(Echo):
    """Computes each batch for as long as the file that its first item names is not there."""

    max_batch = 2
    max_queue = 2
    timeout_s = 30.0

    def predict(self, batch: Batch) -> Any:
        while not Path(batch[0]).exists():
            time.sleep(0.005)
        return [len(batch)] * len(batch)


class GatedEach(Gated):
    max_batch = 1


class Lengths(Gated):
    """Says what was computed together."""

    max_batch = 4
    max_queue = 100
    timeout_s = 30.0

    def length(self, item: Any) -> float:
        return float(item["length"])

    def predict(self, batch: Batch) -> Any:
        while not Path(batch[0]["gate"]).exists():
            time.sleep(0.005)
        return [[item["length"] for item in batch]] * len(batch)


PICTURE = b"\xff\xd8\xff" + bytes(range(256)) * 63
"""As large as a preview may be, nearly."""


class Working(Echo):
    """Says how far it is."""

    def predict(self, batch: Batch) -> Any:
        self.report_progress(0.5, "half of it", PICTURE)
        self.report_progress(1.0, "all of it")
        return list(batch)


class Drawing(Echo):
    """Says how far it is, after much that cannot be told, and goes on when the file is there that its item
    names."""

    def predict(self, batch: Batch) -> Iterator[list[Any]]:
        for _ in range(10_000):
            self.report_progress(float("nan"), "w" * 1000, bytes(100_000))
        self.report_progress("most of it", object(), 7, index=99)  # type: ignore[arg-type]
        self.report_progress(0.5, "half of it", PICTURE)
        while not all(Path(item).exists() for item in batch):
            time.sleep(0.01)
        yield [{"drawn": True} for _ in batch]
        yield [END for _ in batch]


class Several(Echo):
    models = ("one", "two")
    routes = ("/v1/classify",)

    def decode(self, request: ModelRequest) -> Any:
        return {"model": request.model, "path": request.path, "bytes": len(request.body)}


class NeverLoaded(Echo):
    load_timeout_s = 0.2

    def load(self, device: str) -> None:
        threading.Event().wait()


class Warmed(Echo):
    def warm_up(self) -> None:
        raise RuntimeError("cold")


class Exiting(Echo):
    def load(self, device: str) -> None:
        raise SystemExit(3)


class Killed(Echo):
    def load(self, device: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Slow(Echo):
    """Is warm once it has been warmed up."""

    warm = "cold"

    def warm_up(self) -> None:
        time.sleep(0.2)
        self.warm = "warm"

    def predict(self, batch: Batch) -> Any:
        return [[self.warm]] * len(batch)


class Talkative(Echo):
    def predict(self, batch: Batch) -> Any:
        print("printed in predict")  # noqa: T201  what is tested
        os.write(1, b"written in predict\n")
        return list(batch)


class Reporting(Echo):
    """Prints lines as its server writes them to the agent."""

    def predict(self, batch: Batch) -> Any:
        for line in ('{"progress": 0.5}', '{"loading":"weights"}', '{"failed": {}}'):
            print(line)  # noqa: T201  what is tested
        return list(batch)


class Undecided(Model):
    """Has no predict."""


class TooWide(Echo):
    max_batch = 0


NOT_A_CLASS = 7


class NotAModel:
    pass


class Where(Echo):
    """Says which processes serve it."""

    def predict(self, batch: Batch) -> Any:
        return [f"{os.getppid()} {os.getpid()}"] * len(batch)
