"""The dense layers as a model of one's own (`own_models`)."""

from typing import Any

from agent.serve import Batch, Model, ModelRequest
from tests.bench.dense_model import MAX_BATCH, MAX_WAIT_S, DenseLayers


class Dense(Model):
    max_batch = MAX_BATCH
    max_wait_s = MAX_WAIT_S

    def load(self, device: str) -> None:
        self._layers = DenseLayers()

    def decode(self, request: ModelRequest) -> Any:
        return DenseLayers.decode(request.json())

    def predict(self, batch: Batch) -> Any:
        return self._layers.compute(batch)

    def encode(self, output: Any) -> Any:
        return DenseLayers.encode(output)
