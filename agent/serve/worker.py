"""``python -m agent.serve.worker``: a process that runs a model's own code, for the CPU or for one device.

Standard input carries what is to be done and standard output what came of it (:mod:`.messages`); whatever the
model prints goes to standard error. Ends at once when standard input does: the server process is gone.
"""

import argparse
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agent.engines.engine_program import EXIT_UNUSABLE, log_to_standard_error, take_standard_output
from agent.engines.process_guard import end_with_parent
from agent.serve.codec import Codec
from agent.serve.locate import CannotImport, locate
from agent.serve.messages import (
    DropOrder,
    PredictOrder,
    ProcessFacts,
    ProcessReady,
    ProcessUnusable,
    frame,
    read_messages,
)
from agent.serve.model import Model
from agent.serve.options import CannotServe, facts_of
from agent.serve.parcels import ParcelWriter
from agent.serve.prediction import BatchRunner

_log = logging.getLogger("model")

CODEC = "codec"
"""In place of a device: the process decodes and encodes."""


class Pipes:
    """The two pipes to the server process. Messages are taken in by a thread, so that the pipe is always
    empty, and so that a lost server ends this process while it computes."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self.orders = queue.SimpleQueue[Any]()
        """What is to be done; bounded by what the server process has sent and not heard of."""
        self.on_drop: Callable[[int], None] = lambda item: None

    def start(self) -> None:
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def send(self, message: NamedTuple) -> None:
        data = frame(message)
        with self._lock:
            self._write(data)

    def _read(self) -> None:
        try:
            with open(0, "rb", closefd=False) as source:
                read_messages(source, self._take)
        finally:
            os._exit(1)

    def _take(self, message: Any) -> None:
        if isinstance(message, DropOrder):
            self.on_drop(message.item)
        else:
            self.orders.put(message)


def main(arguments: Sequence[str]) -> int:
    """Run to the end; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m agent.serve.worker")
    for name in ("spec", "device", "scratch", "prefix"):
        parser.add_argument(name)
    asked = parser.parse_args(arguments)
    end_with_parent()
    pipes = Pipes(take_standard_output())
    log_to_standard_error()
    pipes.start()
    writer = ParcelWriter(Path(asked.scratch), asked.prefix)
    try:
        model = _ready(asked.spec, asked.device, pipes)
    except (CannotImport, CannotServe) as error:
        pipes.send(ProcessUnusable(str(error), True))
        return EXIT_UNUSABLE
    if model is None:
        return 1
    if asked.device == CODEC:
        codec = Codec(model, writer)
        while True:
            pipes.send(codec.run(pipes.orders.get()))
    runner = BatchRunner(model, writer, pipes.send)
    pipes.on_drop = runner.drop
    while True:
        order: PredictOrder = pipes.orders.get()
        runner.run(order)


def _ready(spec: str, device: str, pipes: Pipes) -> Model | None:
    """The model, once it can do its work; None when one of its hooks raised. Raises :class:`CannotImport` and
    :class:`CannotServe`."""
    step = "importing its module"
    try:
        kind = locate(spec)
        step = "making it"
        model = kind()
        pipes.send(ProcessFacts(facts_of(model)))
        step = "prepare"
        model.prepare()
        if device != CODEC:
            step = "load"
            model.load(device)
            step = "warm_up"
            model.warm_up()
        pipes.send(ProcessReady(facts_of(model)))
        return model
    except (CannotImport, CannotServe):
        raise
    except BaseException as error:  # SystemExit as well: nothing else would say what ended the process
        _log.error("%s raised %s", step, type(error).__name__, exc_info=error)
        pipes.send(ProcessUnusable(f"{step} raised {type(error).__name__}: {error}"[:300], False))
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
