"""The model that `own_models` has served by both servers: three dense layers on numpy, JSON in and out."""

from collections.abc import Sequence
from typing import Any

import numpy

WIDTH = 512
MAX_BATCH = 16
MAX_WAIT_S = 0.005


class DenseLayers:
    """What both servers call. Rows are independent of each other."""

    def __init__(self) -> None:
        random = numpy.random.default_rng(1)
        self._layers = [random.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype("float32") for _ in range(3)]

    @staticmethod
    def decode(body: Any) -> Any:
        return numpy.asarray(body["input"], dtype="float32")

    def compute(self, rows: Sequence[Any]) -> Any:
        found = numpy.stack(rows)
        for layer in self._layers:
            found = numpy.maximum(found @ layer, 0.0)
        return found

    @staticmethod
    def encode(row: Any) -> dict[str, Any]:
        return {"output": row[:10].tolist()}
