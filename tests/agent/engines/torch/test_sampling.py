"""Sampling per request."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agent.engines.torch.parsing import Sampling
from agent.engines.torch.sampling import KEYWORD, PerRequestSampling, uniform

VOCABULARY = 12


def scores(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def choose(wanted: list[tuple[Sampling, int]], logits: torch.Tensor) -> list[int]:
    """The tokens chosen for requests of (sampling, position), one row each."""
    batch: list[Any] = [
        SimpleNamespace(
            has_new_token=True,
            state=SimpleNamespace(logit_processor_kwargs={KEYWORD: sampling}, position_offset=position),
        )
        for sampling, position in wanted
    ]
    processor = PerRequestSampling()
    arguments = torch.empty(0)
    processor.prepare_tensor_args(batch, arguments)
    chosen: list[int] = processor(torch.empty(0), logits, arguments).argmax(dim=-1).tolist()
    return chosen


def test_greedy_requests_keep_their_likeliest_token_beside_sampled_ones() -> None:
    logits = scores(3)
    chosen = choose([(Sampling(), 9), (Sampling(temperature=1.0, seed=1), 9), (Sampling(), 9)], logits)
    assert chosen[0] == logits[0].argmax()
    assert chosen[2] == logits[2].argmax()


def test_the_same_seed_gives_the_same_token_in_any_batch() -> None:
    row = scores(1)
    mine = Sampling(temperature=1.3, seed=77)
    alone = choose([(mine, 40)], row)[0]
    for others in range(1, 5):
        wanted = [(Sampling(temperature=0.7, top_p=0.5, seed=n), n) for n in range(others)]
        logits = torch.cat([scores(others, seed=others), row])
        assert choose([*wanted, (mine, 40)], logits)[-1] == alone


def test_draws_follow_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    drawn = [choose([(Sampling(temperature=1.0, seed=3), n)], logits)[0] for n in range(2000)]
    shares = torch.bincount(torch.tensor(drawn), minlength=3) / len(drawn)
    assert torch.allclose(shares, torch.tensor([0.5, 0.3, 0.2]), atol=0.04)


def test_temperature_sharpens() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    drawn = [choose([(Sampling(temperature=0.05, seed=3), n)], logits)[0] for n in range(200)]
    assert drawn.count(0) > 195


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=2.0, top_p=0.75, seed=5), Sampling(temperature=2.0, top_k=2, seed=5)],
    ids=["top_p", "top_k"],
)
def test_unlikely_tokens_are_left_out(sampling: Sampling) -> None:
    logits = 2 * torch.log(torch.tensor([[0.05, 0.45, 0.10, 0.40]]))  # at temperature 2: these probabilities
    assert {choose([(sampling, n)], logits)[0] for n in range(200)} == {1, 3}


def test_the_likeliest_token_is_never_left_out() -> None:
    logits = scores(1)
    assert choose([(Sampling(temperature=1.0, top_p=0.0, seed=1), 4)], logits)[0] == logits[0].argmax()


def test_chance_depends_on_seed_and_position_alone() -> None:
    assert uniform(5, 9) == uniform(5, 9)
    assert len({uniform(seed, position) for seed in range(-5, 5) for position in range(20)}) == 200
    assert all(0 <= uniform(seed, 3) < 1 for seed in (-(2**63), 2**63 - 1))


def test_a_request_without_sampling_is_a_bug() -> None:
    with pytest.raises(TypeError):
        PerRequestSampling().check_kwargs({})
