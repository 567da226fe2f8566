"""The dense layers behind LitServe: ``python -m tests.bench.dense_litserve PORT``.

Written against LitServe 0.2.19 (litserve/api.py, litserve/server.py).
"""

import importlib
import sys
from typing import Any

from tests.bench.dense_model import MAX_BATCH, MAX_WAIT_S, DenseLayers

_litserve: Any = importlib.import_module("litserve")
_Base: Any = _litserve.LitAPI


class DenseAPI(_Base):  # type: ignore[misc, no-any-unimported]
    def setup(self, device: str) -> None:
        self._layers = DenseLayers()

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # by its annotation the body is chosen
        return DenseLayers.decode(request)

    def batch(self, inputs: Any) -> Any:
        return list(inputs)

    def predict(self, inputs: Any) -> Any:
        return self._layers.compute(inputs)

    def unbatch(self, output: Any) -> Any:
        return list(output)

    def encode_response(self, output: Any) -> Any:
        return DenseLayers.encode(output)


if __name__ == "__main__":
    api = DenseAPI(max_batch_size=MAX_BATCH, batch_timeout=MAX_WAIT_S)
    server = _litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
