"""A text that is held to a grammar ends within its limit of tokens, whatever the model likes."""

import json
from typing import Any

import pytest
import torch

from agent.engines.torch.chat_requests import OfferedTool
from agent.engines.torch.ending import SLACK_TOKENS, ZONE_TOKENS
from agent.engines.torch.engine import TorchEngine
from agent.engines.torch.guidance import Guidance, TextGuide
from agent.engines.torch.tool_calls import ToolFormat

pytest.importorskip("llguidance")

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "celsius": {"type": "integer"}},
    "required": ["city", "celsius"],
}
SHORTEST = '{"city": "", "celsius": 0}'
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["red", "green"]},
        "parts": {"type": "array", "items": WEATHER, "maxItems": 5},
        "note": {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 4}]},
    },
    "required": ["kind", "parts", "note"],
}


@pytest.fixture(scope="module")
def guidance(engine: TorchEngine) -> Guidance:
    return Guidance(engine.model)


def written(engine: TorchEngine, guide: TextGuide, most: int, scores: torch.Generator) -> tuple[str, bool]:
    """The text of a model that likes each token as much as any, and whether it came to its end."""
    vocabulary, ids = engine.model.vocabulary, list[int]()
    while len(ids) < most:
        liked = torch.rand(vocabulary, generator=scores)
        liked[list(engine.model.eos_ids)] = -1.0
        allowed = guide.within(guide.allowed(vocabulary), liked, most - len(ids))
        token = int(liked.masked_fill(~allowed, -torch.inf).argmax())
        if token in engine.model.eos_ids:
            return engine.model.tokenizer.decode(ids), True
        ids.append(token)
        guide.follow([token])
    return engine.model.tokenizer.decode(ids), False


@pytest.mark.parametrize("schema", [WEATHER, NESTED, {"type": "object"}, {"type": "array"}], ids=str)
@pytest.mark.parametrize("most", [90, ZONE_TOKENS + 40])
def test_json_is_whole_where_its_limit_is_enough(
    engine: TorchEngine, guidance: Guidance, schema: Any, most: int
) -> None:
    scores = torch.Generator().manual_seed(most)
    for _ in range(2):
        text, ended = written(engine, guidance.json(schema), most, scores)
        assert ended, text
        json.loads(text)


def test_a_limit_that_just_suffices_leaves_the_shortest_text(engine: TorchEngine, guidance: Guidance) -> None:
    tokens = len(engine.model.tokenizer(SHORTEST).input_ids) + 1  # and the one that ends it
    scores = torch.Generator().manual_seed(1)
    assert written(engine, guidance.json(WEATHER), tokens, scores) == (SHORTEST, True)
    text, ended = written(engine, guidance.json(WEATHER), tokens - 2, scores)
    assert not ended, "it cannot be whole: it is what it would be anyway"
    assert not text.endswith("}")


def test_far_from_its_limit_a_text_is_free(engine: TorchEngine, guidance: Guidance) -> None:
    guide = guidance.json(WEATHER)
    allowed = guide.allowed(engine.model.vocabulary)
    liked = torch.zeros(engine.model.vocabulary)
    assert guide.within(allowed, liked, ZONE_TOKENS + 1) is allowed
    assert guide.within(allowed, liked, len(SHORTEST) + SLACK_TOKENS + 1) is allowed
    assert int(guide.within(allowed, liked, len(SHORTEST) + 1).sum()) == 1


@pytest.mark.parametrize("form", [ToolFormat.HERMES, ToolFormat.LLAMA])
def test_a_call_is_whole_too(engine: TorchEngine, guidance: Guidance, form: ToolFormat) -> None:
    function = {"name": "weather", "parameters": WEATHER}
    tool = OfferedTool.model_validate({"type": "function", "function": function})
    for seed in range(2):
        guide = guidance.calls([tool], form, several=True)
        text, ended = written(engine, guide, 110, torch.Generator().manual_seed(seed))
        assert ended, text
        assert '"name": "weather"' in text


def test_a_copy_ends_by_itself(engine: TorchEngine, guidance: Guidance) -> None:
    guide = guidance.json(WEATHER)
    guide.follow(engine.model.tokenizer('{"city": "Os').input_ids)
    liked = torch.zeros(engine.model.vocabulary)
    left = len('", "celsius": 0}') + 1
    for each in (guide, guide.copy()):
        allowed = each.within(each.allowed(engine.model.vocabulary), liked, left)
        assert engine.model.tokenizer.decode(allowed.nonzero().flatten().tolist()) == '"'
        each.follow(engine.model.tokenizer('"').input_ids)
