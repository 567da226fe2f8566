"""Grammars of calls, in each format in which models write them."""

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import torch

from agent.engines.torch.chat_requests import OfferedTool
from agent.engines.torch.engine import TorchEngine
from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.guidance import Guidance, TextGuide
from agent.engines.torch.json_position import INTEGER_DIGITS
from agent.engines.torch.tool_calls import ToolCallReader, ToolFormat

pytest.importorskip("llguidance")

PARAMETERS = {
    "add": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "required": ["a"],
        "$defs": {"n": {"enum": [1, 2]}},
    },
    "now": {"type": "object", "maxProperties": 0},
}
TOOLS = [
    OfferedTool.model_validate({"type": "function", "function": {"name": name, "parameters": parameters}})
    for name, parameters in PARAMETERS.items()
]
ADD, NOW = '{"name": "add", "arguments": {"a": 2}}', '{"name": "now", "arguments": {}}'
HERMES = f"<tool_call>\n{ADD}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>"


def guidance(engine: TorchEngine, added: dict[str, int]) -> Guidance:
    """With marks that are tokens: some that the model never says."""
    tokenizer = engine.model.tokenizer
    model: Any = SimpleNamespace(
        tokenizer=SimpleNamespace(get_added_vocab=lambda: added),
        vocabulary=engine.model.vocabulary,
        eos_ids=engine.model.eos_ids,
    )
    found = Guidance(model)
    model.tokenizer = tokenizer
    _ = found._tokenizer
    model.tokenizer = SimpleNamespace(get_added_vocab=lambda: added)
    return found


def written(engine: TorchEngine, guide: TextGuide, added: dict[str, int], wanted: str) -> str:
    """A text that the grammar allows: of what may come next what ``wanted`` has there, else the first."""
    marks = {token: mark for mark, token in added.items()}
    text = ""
    for _ in range(400):
        allowed = set(guide.allowed(engine.model.vocabulary).nonzero().flatten().tolist())
        if allowed <= engine.model.eos_ids or (text == wanted and engine.model.eos_ids & allowed):
            return text
        options = {token: marks.get(token) or engine.model.tokenizer.decode([token]) for token in allowed}
        fitting = [token for token, piece in options.items() if wanted.startswith(text + piece)]
        token = min(fitting or allowed - engine.model.eos_ids)
        text += options[token]
        guide.follow([token])
    raise AssertionError(f"no end: {text}")


MARKS = {"<tool_call>": 180, "</tool_call>": 181, "[TOOL_CALLS]": 182}


@pytest.mark.parametrize(
    ("form", "added", "wanted"),
    [
        (ToolFormat.HERMES, {}, HERMES),
        (ToolFormat.HERMES, MARKS, HERMES),
        (ToolFormat.MISTRAL, MARKS, f"[TOOL_CALLS][{ADD}, {NOW}]"),
        (ToolFormat.MISTRAL, MARKS | {"[ARGS]": 183}, '[TOOL_CALLS]add[ARGS]{"a": 2}[TOOL_CALLS]now[ARGS]{}'),
    ],
)
def test_a_grammar_writes_what_the_reader_reads(
    engine: TorchEngine, form: ToolFormat, added: dict[str, int], wanted: str
) -> None:
    found = guidance(engine, added)
    several = written(engine, found.calls(TOOLS, form, several=True), added, wanted)
    assert several == wanted
    reader = ToolCallReader(form)
    calls = [call for delta in reader.push(several) for call in delta.calls]
    assert [call.name for call in calls] == ["add", "now"]
    assert orjson.loads(calls[0].arguments) == {"a": 2}
    one = written(engine, found.calls(TOOLS, form, several=False), added, wanted)
    assert one.count("add") == 1
    assert "now" not in one


def test_llamas_answer_is_one_call(engine: TorchEngine) -> None:
    guide = guidance(engine, {}).calls(TOOLS, ToolFormat.LLAMA, several=True)
    wanted = '{"name": "now", "parameters": {}}'
    assert written(engine, guide, {}, wanted) == wanted


def test_a_copy_goes_its_own_way(engine: TorchEngine) -> None:
    guide = guidance(engine, {}).json({"enum": ["a", "b"]})
    copy = guide.copy()
    guide.follow(engine.model.tokenizer('"a').input_ids)
    assert copy.takes(engine.model.tokenizer('"b"').input_ids)
    assert not copy.takes(engine.model.tokenizer("b").input_ids)


def test_logits_of_no_token_are_never_allowed(engine: TorchEngine) -> None:
    allowed = guidance(engine, {}).json({}).allowed(1000)
    assert allowed.shape == (1000,)
    assert allowed.dtype == torch.bool
    assert not allowed[engine.model.vocabulary :].any()


def test_a_text_that_leaves_its_grammar_is_an_error(engine: TorchEngine) -> None:
    guide = guidance(engine, {}).json({"type": "object"})
    with pytest.raises(ValueError, match=r"\S"):
        guide.follow(engine.model.tokenizer("x").input_ids)
    with pytest.raises(ValueError, match=r"\S"):
        guide.allowed(engine.model.vocabulary)


@pytest.mark.parametrize("levels", [200, 300])
def test_a_schema_that_is_nested_too_deeply_is_refused(engine: TorchEngine, levels: int) -> None:
    value: Any = []
    for _ in range(levels):
        value = [value]
    with pytest.raises(InvalidRequest, match="response_format has a schema that cannot be kept"):
        guidance(engine, {}).json({"enum": [value]})


def test_a_model_without_an_end_keeps_to_no_format(engine: TorchEngine) -> None:
    endless: Any = SimpleNamespace(tokenizer=engine.model.tokenizer, vocabulary=258, eos_ids=frozenset())
    with pytest.raises(InvalidRequest, match="no token for the end"):
        Guidance(endless).json({})


def test_a_number_ends_where_no_client_could_read_more(engine: TorchEngine) -> None:
    digit = engine.model.tokenizer("9").input_ids
    for schema in ({"type": "integer"}, {"type": "array", "items": {"type": "number"}}):
        guide = guidance(engine, {}).json(schema)
        guide.follow(engine.model.tokenizer("[" if "items" in schema else "").input_ids)
        for _ in range(INTEGER_DIGITS):
            assert guide.allowed(engine.model.vocabulary)[digit].all()
            guide.follow(digit)
        assert not guide.allowed(engine.model.vocabulary)[digit].any()


def test_a_text_that_may_end_needs_no_token_that_brings_the_end_nearer(engine: TorchEngine) -> None:
    guide = guidance(engine, {}).json({"type": "array", "items": {"type": "string"}})
    vocabulary, ids = engine.model.vocabulary, engine.model.tokenizer
    for text, closing in (("[", "]"), ('"a', '"'), ('"', "]")):
        guide.follow(ids(text).input_ids)
        found = guide.closing(guide.allowed(vocabulary))
        assert found is not None
        assert [ids.decode([token])[0] for token in found.nonzero().flatten().tolist()] == [closing]
    guide.follow(ids("]").input_ids)
    assert guide.closing(guide.allowed(vocabulary)) is None
