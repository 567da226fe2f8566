"""Layers and values stay what they are, whichever way their weights lie."""

import torch
from torch import nn

from agent.engines.torch.weight_layout import arrange, by_columns, measured_gain


class Tied(nn.Module):
    """Two layers of one shape, one of another, and one that shares its weight with an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(8, 16, bias=False)
        self.back = nn.Linear(16, 8)
        self.embedding = nn.Embedding(32, 8)
        self.head = nn.Linear(8, 32, bias=False)
        self.head.weight = self.embedding.weight


def test_weights_that_are_faster_by_columns_lie_so_and_keep_their_values() -> None:
    network = Tied().requires_grad_(False)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    tried: list[tuple[int, ...]] = []

    def gain(weights: list[torch.Tensor]) -> float:
        tried.append((len(weights), *weights[0].shape))
        return 1.5 if weights[0].shape == (16, 8) else 1.0

    assert arrange(network, gain) == {(16, 8): 1.5, (8, 16): 1.0}
    assert tried == [(2, 16, 8), (1, 8, 16)]
    assert network.first.weight.stride() == network.second.weight.stride() == (1, 16)
    assert network.back.weight.is_contiguous()
    assert network.head.weight.is_contiguous(), "the embedding reads its rows"
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    row = torch.randn(1, 8)
    expected = row @ before["first.weight"].t() + before["first.bias"]
    torch.testing.assert_close(network.first(row), expected)


def test_weights_of_other_types_stay_as_they_are() -> None:
    network = nn.Linear(8, 16).to(torch.bfloat16).requires_grad_(False)
    assert arrange(network, lambda weights: 2.0) == {}
    assert network.weight.is_contiguous()


def test_the_gain_is_a_ratio_of_times() -> None:
    weights = [torch.randn(64, 32) for _ in range(3)]
    with torch.inference_mode():
        assert 0.0 < measured_gain(weights) < 1000.0
    assert all(weight.is_contiguous() for weight in weights)
    assert torch.equal(by_columns(weights[0]), weights[0])
