"""Sampling per request."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.generation.continuous_batching.requests import RequestState
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from agent.engines.torch.parsing import Sampling
from agent.engines.torch.sampling import KEYWORD, PerRequestSampling, TextSampling, uniform

VOCABULARY = 12


def scores(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def request(text: TextSampling, prompt: list[int], answer: list[int]) -> RequestState:
    """As the manager has it when it prepares the step for the next token of the answer."""
    return RequestState(
        "r",
        prompt,
        generated_tokens=answer,
        logit_processor_kwargs={KEYWORD: text},
        position_offset=len(prompt) + len(answer),
    )


def step(states: list[RequestState], logits: torch.Tensor) -> torch.Tensor:
    """The scores by which a step chooses a token for each of the requests."""
    batch: list[Any] = [SimpleNamespace(has_new_token=True, state=state) for state in states]
    processor = PerRequestSampling()
    arguments = torch.empty(0)
    processor.prepare_tensor_args(batch, arguments)
    return processor(torch.empty(0), logits, arguments)


def choose(wanted: list[tuple[Sampling, int]], logits: torch.Tensor) -> list[int]:
    """The tokens chosen for requests of (sampling, position), one row each."""
    states = [request(TextSampling(sampling), [0] * position, []) for sampling, position in wanted]
    chosen: list[int] = step(states, logits).argmax(dim=-1).tolist()
    return chosen


def draw(sampling: Sampling, logits: torch.Tensor, times: int) -> list[int]:
    """The tokens chosen at so many positions, all of which have these scores."""
    return choose([(sampling, position) for position in range(times)], logits.expand(times, -1))


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
    drawn = draw(Sampling(temperature=1.0, seed=3), logits, 2000)
    shares = torch.bincount(torch.tensor(drawn), minlength=3) / len(drawn)
    assert torch.allclose(shares, torch.tensor([0.5, 0.3, 0.2]), atol=0.04)


def test_temperature_sharpens() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    drawn = draw(Sampling(temperature=0.05, seed=3), logits, 200)
    assert drawn.count(0) > 195


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=2.0, top_p=0.75, seed=5), Sampling(temperature=2.0, top_k=2, seed=5)],
    ids=["top_p", "top_k"],
)
def test_unlikely_tokens_are_left_out(sampling: Sampling) -> None:
    logits = 2 * torch.log(torch.tensor([[0.05, 0.45, 0.10, 0.40]]))  # at temperature 2: these probabilities
    assert set(draw(sampling, logits, 200)) == {1, 3}


def test_the_likeliest_token_is_never_left_out() -> None:
    logits = scores(1)
    assert choose([(Sampling(temperature=1.0, top_p=0.0, seed=1), 4)], logits)[0] == logits[0].argmax()


def test_chance_depends_on_seed_and_position_alone() -> None:
    assert uniform(5, 9) == uniform(5, 9)
    assert len({uniform(seed, position) for seed in range(-5, 5) for position in range(20)}) == 200
    assert all(0 <= uniform(seed, 3) < 1 for seed in (-(2**63), 2**63 - 1))


PROMPT, ANSWER = [3, 3, 5], [7, 3, 7, 7]


def test_bias_and_repetition_penalty_are_transformers_own() -> None:
    logits = scores(1)
    wanted = Sampling(repetition_penalty=1.7, logit_bias=((3, 2.5), (9, -100.0)))
    theirs: Any = LogitsProcessorList(
        [SequenceBiasLogitsProcessor([[[3], 2.5], [[9], -100.0]]), RepetitionPenaltyLogitsProcessor(1.7)]
    )
    expected = theirs(torch.tensor([PROMPT + ANSWER]), logits.clone())
    found = step([request(TextSampling(wanted), PROMPT, ANSWER)], logits)
    torch.testing.assert_close(found, expected)


def test_presence_and_frequency_count_the_answer_and_not_the_prompt() -> None:
    logits = scores(1)
    wanted = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    expected = logits.clone()
    expected[0, 7] -= 0.5 + 3 * 0.25
    expected[0, 3] -= 0.5 + 0.25
    torch.testing.assert_close(step([request(TextSampling(wanted), PROMPT, ANSWER)], logits), expected)


def test_penalties_are_the_same_step_by_step_after_a_new_beginning_and_when_continued() -> None:
    """The manager begins a request anew with its answer so far as a part of the prompt; a client does so with
    the answer that it has."""
    logits = scores(1)
    wanted = Sampling(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.3)
    expected = step([request(TextSampling(wanted), PROMPT, ANSWER)], logits)
    text = TextSampling(wanted)
    for length in range(len(ANSWER)):
        state = request(text, PROMPT, ANSWER[:length])
        found = step([state], logits)
    anew = state.create_equivalent_initial_request()
    assert anew.logit_processor_kwargs[KEYWORD] is text
    anew.generated_tokens = ANSWER[-1:]
    torch.testing.assert_close(step([anew], logits), expected)
    assert not torch.equal(found, expected)
    continued = TextSampling(wanted, begun=2)
    torch.testing.assert_close(step([request(continued, PROMPT + ANSWER[:2], ANSWER[2:])], logits), expected)


@pytest.mark.parametrize(
    "wanted",
    [
        Sampling(temperature=0.8, top_k=5),
        Sampling(temperature=1.5, top_p=0.6),
        Sampling(temperature=1.2, min_p=0.2),
        Sampling(temperature=1.3, top_k=7, top_p=0.7, min_p=0.15),
        Sampling(temperature=2.0, top_k=4, top_p=0.9),
    ],
)
def test_draws_are_from_the_distribution_that_transformers_draws_from(wanted: Sampling) -> None:
    logits = 2 * scores(1, seed=8)
    theirs: Any = LogitsProcessorList(
        [
            TemperatureLogitsWarper(wanted.temperature),
            TopKLogitsWarper(wanted.top_k or VOCABULARY),
            TopPLogitsWarper(wanted.top_p),
            MinPLogitsWarper(wanted.min_p),
        ]
    )
    expected = theirs(torch.tensor([[0]]), logits.clone()).softmax(dim=-1)[0]
    drawn = draw(replace(wanted, seed=3), logits, 2500)
    shares = torch.bincount(torch.tensor(drawn), minlength=VOCABULARY) / len(drawn)
    assert set(shares.nonzero().flatten().tolist()) <= set(expected.nonzero().flatten().tolist())
    torch.testing.assert_close(shares, expected, atol=0.035, rtol=0)


def test_log_probabilities_are_the_models_own_whatever_changes_the_choice() -> None:
    logits = scores(2)
    wanted = Sampling(temperature=3.0, seed=2, top_logprobs=3, logit_bias=((4, 100.0),))
    texts = [TextSampling(wanted), TextSampling(Sampling(top_logprobs=0))]
    found = step([request(text, PROMPT, []) for text in texts], logits)
    for row, text in enumerate(texts):
        (entry,) = text.logprobs
        expected = logits[row].log_softmax(dim=-1)
        assert entry.token == found[row].argmax()
        assert entry.logprob == pytest.approx(float(expected[entry.token]))
    assert texts[0].logprobs[0].token == 4
    values, tokens = logits[0].log_softmax(dim=-1).topk(3)
    assert [token for token, _ in texts[0].logprobs[0].top] == tokens.tolist()
    assert [value for _, value in texts[0].logprobs[0].top] == pytest.approx(values.tolist())
    assert texts[1].logprobs[0].top == ()


def test_a_repeated_step_reports_each_token_once() -> None:
    text = TextSampling(Sampling(top_logprobs=0))
    for answer in ([], [7], [7]):
        step([request(text, PROMPT, list(answer))], scores(1))
    assert len(text.logprobs) == 2


class Only:
    """A grammar that allows what the text ends with, plus one."""

    end_ids: Sequence[int] = (0,)

    def __init__(self) -> None:
        self.text: list[int] = []
        self.left = 0

    def follow(self, tokens: Sequence[int]) -> None:
        self.text += tokens
        if 11 in tokens:
            raise ValueError("too high")

    def allowed(self, vocabulary: int) -> torch.Tensor:
        allowed = torch.zeros(vocabulary, dtype=torch.bool)
        allowed[self.text[-1] + 1 if self.text else 0] = True
        return allowed

    def within(self, allowed: torch.Tensor, scores: torch.Tensor, left: int) -> torch.Tensor:
        self.left = left
        return allowed if left > 1 else torch.zeros_like(allowed).index_fill_(0, torch.tensor([2]), True)

    def closing(self, allowed: torch.Tensor) -> torch.Tensor | None:
        return None


def test_a_grammar_hears_how_many_tokens_are_left_until_the_limit() -> None:
    guide = Only()
    text = TextSampling(Sampling(), guide=guide, most_tokens=3)
    for left, answer in ((3, []), (2, [0]), (1, [0, 1])):
        found = step([request(text, PROMPT, list(answer))], scores(1)).argmax()
        assert (guide.left, int(found)) == (left, 2 if left == 1 else len(answer))
    begun = TextSampling(Sampling(), begun=1, guide=guide, most_tokens=5)
    step([request(begun, [*PROMPT, 4], [])], scores(1))
    assert guide.left == 5, "what an answer begins with is not of its limit"


def test_a_grammar_decides_what_may_be_chosen_greedily_and_by_chance() -> None:
    for wanted in (Sampling(), Sampling(temperature=2.0, seed=1, top_k=3, logit_bias=((5, 100.0),))):
        text = TextSampling(wanted, guide=Only())
        assert step([request(text, PROMPT, [])], scores(1)).argmax() == 0
        assert step([request(text, PROMPT, [0, 8])], scores(1)).argmax() == 9
        continued = TextSampling(wanted, begun=1, guide=Only())
        assert step([request(continued, [*PROMPT, 4], [])], scores(1)).argmax() == 5


def test_a_grammar_that_fails_is_an_error_of_its_text_alone() -> None:
    text, other = TextSampling(Sampling(), guide=Only()), TextSampling(Sampling())
    logits = scores(2)
    found = step([request(text, PROMPT, [11]), request(other, PROMPT, [11])], logits)
    assert text.error == "too high"
    assert other.error is None
    assert found[1].argmax() == logits[1].argmax()


class Unended(Only):
    """A grammar whose texts cannot end yet, but for which 3 and 4 would bring the end nearer."""

    end_ids = (0, 1)

    def allowed(self, vocabulary: int) -> torch.Tensor:
        allowed = torch.ones(vocabulary, dtype=torch.bool)
        allowed[[0, 1]] = False
        return allowed

    def closing(self, allowed: torch.Tensor) -> torch.Tensor | None:
        closing = torch.zeros_like(allowed)
        closing[[3, 4]] = True
        return closing


def test_the_probability_of_a_forbidden_end_goes_to_the_likeliest_token_that_brings_it_nearer() -> None:
    probability = torch.tensor([[0.3, 0.2, 0.25, 0.05, 0.1, *[0.1 / 11] * 11]])
    text = TextSampling(Sampling(), guide=Unended())
    found = step([request(text, PROMPT, [])], probability.log())[0].softmax(-1)
    expected = probability[0].clone()
    expected[:2] = 0.0
    expected[4] = 0.1 + 0.3 + 0.2
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_request_without_sampling_is_a_bug() -> None:
    with pytest.raises(TypeError):
        PerRequestSampling().check_kwargs({})
