"""How the weights of linear layers lie in memory on a CPU: by rows, or by columns where a token is faster so.

A token reads every weight once, so it takes as long as memory gives them. A product of one row with a matrix
by rows is a sum for each number of the result, one by columns adds multiples of columns; on some CPUs the
latter takes up to half as long. Of larger batches both take the same. Which is faster is tried.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import torch
from torch.nn import functional

_GAIN = 1.1
"""By columns must be so many times as fast."""
_TRIED = 3
"""So many layers of one shape are tried: their weights together may not fit a cache that holds one."""
_TURNS = 8
_TURNS_S = 0.1
"""For each shape so many turns of both layouts, and none once so much time has passed."""


def arrange(
    network: torch.nn.Module, gain: Callable[[list[torch.Tensor]], float] | None = None
) -> dict[tuple[int, int], float]:
    """Lay out by columns the weights that are faster so, one after the other. Shapes and values stay.

    ``gain`` says how many times as fast weights of one shape are by columns. Returns it for each shape that
    was tried.
    """
    gain = measured_gain if gain is None else gain
    alike = defaultdict(list)
    for layer in _layers(network):
        alike[layer.out_features, layer.in_features].append(layer)
    found = {}
    with torch.inference_mode():
        for shape, layers in alike.items():
            found[shape] = gain([layer.weight for layer in layers[:_TRIED]])
            if found[shape] >= _GAIN:
                for layer in layers:
                    layer.weight.data = by_columns(layer.weight.data)
    return found


def by_columns(weight: torch.Tensor) -> torch.Tensor:
    """The same matrix, each of its columns in one piece."""
    return weight.t().contiguous().t()


def measured_gain(weights: list[torch.Tensor]) -> float:
    """How many times as fast a product of one row with each of ``weights`` is by columns."""
    row = torch.ones((1, weights[0].size(1)), dtype=weights[0].dtype)
    other = [by_columns(weight) for weight in weights]
    least, ends_s = {0: float("inf"), 1: float("inf")}, time.monotonic() + _TURNS_S
    for turn in range(_TURNS + 1):
        for place, layout in enumerate((weights, other)):
            took_s = _took_s(row, layout)
            if turn:  # the first finds nothing in its caches
                least[place] = min(least[place], took_s)
        if turn and time.monotonic() > ends_s:
            break
    return least[0] / max(least[1], 1e-9)


def _took_s(row: torch.Tensor, weights: Iterable[torch.Tensor]) -> float:
    began_s = time.perf_counter()
    for weight in weights:
        functional.linear(row, weight)
    return time.perf_counter() - began_s


def _layers(network: torch.nn.Module) -> list[torch.nn.Linear]:
    """The linear layers whose weights are theirs alone: embeddings that share them read rows."""
    users = Counter(id(weight) for module in network.modules() for weight in module.parameters(recurse=False))
    return [
        module
        for module in network.modules()
        if type(module) is torch.nn.Linear
        and users[id(module.weight)] == 1
        and module.weight.dtype == torch.float32
        and module.weight.device.type == "cpu"
        and module.weight.is_contiguous()
    ]
