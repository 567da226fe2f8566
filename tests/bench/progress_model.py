"""A model that says how far it is, at times that nobody can foresee, and when it said so."""

import random
import time
from collections.abc import Iterator
from typing import Any

from agent.serve import END, Batch, Model

PREVIEW_BYTES = 2048


class Told(Model):
    """Works for as many seconds as its item says; ``words`` are the time on the machine's monotonic clock, in
    nanoseconds. Every eighth report has a preview, which ends with that time."""

    max_batch = 64
    max_wait_s = 0.1
    workers = 1
    timeout_s = 600.0

    def predict(self, batch: Batch) -> Iterator[list[Any]]:
        chance, began_s, seconds, step = random.Random(7), time.monotonic(), max(batch), 0
        while (now_s := time.monotonic() - began_s) < seconds:
            step += 1
            words = str(time.monotonic_ns())
            preview = None if step % 8 else bytes(PREVIEW_BYTES) + words.encode()
            for index in range(len(batch)):
                self.report_progress(now_s / seconds, words, preview, index=index)
            time.sleep(chance.choice((0.005, 0.02, 0.05, 0.15, 0.4)))
        yield [{"steps": step} for _ in batch]
        yield [END for _ in batch]
