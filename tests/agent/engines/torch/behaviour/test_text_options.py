"""What a request may ask of its text, over HTTP at a tiny model; numbers are compared with transformers'."""

import sys
from typing import Any

import httpx
import orjson
import pytest
import torch
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageFunctionToolCall

from agent.engines.torch.engine import TorchEngine

TEXT: dict[str, Any] = {"model": "tiny", "prompt": "hello", "max_tokens": 8}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 60,
}
COLOURS = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "sizes": {"type": "array", "maxItems": 2}},
    "required": ["colour"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOURS, "strict": True}}
PAINT = {"type": "function", "function": {"name": "paint", "parameters": COLOURS | {"required": ["colour"]}}}
MIX = {"type": "function", "function": {"name": "mix", "parameters": {"type": "object", "maxProperties": 0}}}


async def post(client: httpx.AsyncClient, path: str, body: Any) -> Any:
    response = await client.post(f"/v1/{path}", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def complete(client: httpx.AsyncClient, **options: Any) -> Completion:
    return Completion.model_validate(await post(client, "completions", TEXT | options), strict=True)


async def chat(client: httpx.AsyncClient, **options: Any) -> ChatCompletion:
    return ChatCompletion.model_validate(await post(client, "chat/completions", CHAT | options), strict=True)


async def streamed(client: httpx.AsyncClient, path: str, body: Any) -> list[Any]:
    response = await client.post(f"/v1/{path}", json=body | {"stream": True})
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [orjson.loads(line) for line in lines]


def own_logprobs(engine: TorchEngine, text: str) -> tuple[list[int], torch.Tensor]:
    """The tokens of a text, and by the model's plain forward pass the log probabilities after each."""
    ids = engine.model.tokenizer(text).input_ids
    with torch.inference_mode():
        logits = engine.model.network(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return ids, logits.float().log_softmax(dim=-1)


async def test_log_probabilities_are_those_of_the_plain_model(
    client: httpx.AsyncClient, engine: TorchEngine
) -> None:
    (choice,) = (await complete(client, logprobs=3)).choices
    ids, expected = own_logprobs(engine, "hello" + choice.text)
    found = choice.logprobs
    assert found is not None
    assert found.text_offset == list(range(8))
    assert found.tokens == list(choice.text)
    assert found.token_logprobs == pytest.approx(
        [float(expected[4 + n, ids[5 + n]]) for n in range(8)], abs=1e-4
    )
    assert found.top_logprobs is not None
    for place, top in enumerate(found.top_logprobs):
        assert sorted(top.values()) == pytest.approx(
            expected[4 + place].topk(3).values.tolist()[::-1], abs=1e-4
        )


async def test_log_probabilities_of_chat_are_the_same_streamed_and_whole(client: httpx.AsyncClient) -> None:
    options = {"logprobs": True, "top_logprobs": 2, "max_tokens": 6}
    (choice,) = (await chat(client, **options)).choices
    assert choice.logprobs is not None
    whole = choice.logprobs.content or []
    assert "".join(entry.token for entry in whole) == choice.message.content
    assert [bytes(entry.bytes or ()).decode() for entry in whole] == [entry.token for entry in whole]
    assert all(len(entry.top_logprobs) == 2 for entry in whole)
    chunks = [
        ChatCompletionChunk.model_validate(each)
        for each in await streamed(client, "chat/completions", CHAT | options)
    ]
    pieces = [chunk.choices[0].logprobs for chunk in chunks]
    assert [entry for piece in pieces if piece is not None for entry in piece.content or ()] == whole


async def test_the_prompt_comes_back_with_its_log_probabilities(
    client: httpx.AsyncClient, engine: TorchEngine
) -> None:
    body = TEXT | {"prompt": "hello world", "echo": True, "logprobs": 1, "max_tokens": 0}
    (choice,) = (await post(client, "completions", body))["choices"]
    ids, expected = own_logprobs(engine, "hello world")
    found = choice["logprobs"]
    assert choice["text"] == "hello world"
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    assert found["token_logprobs"][1:] == pytest.approx(
        [float(expected[n, token]) for n, token in enumerate(ids[1:])], abs=1e-4
    )
    assert found["text_offset"] == list(range(11))
    (longer,) = (await post(client, "completions", body | {"max_tokens": 8}))["choices"]
    assert longer["logprobs"]["text_offset"] == list(range(19))
    assert longer["text"].startswith("hello world")
    ids = engine.model.tokenizer("hello").input_ids
    echoed = (await complete(client, prompt=ids, echo=True)).choices[0].text
    assert echoed == "hello" + (await complete(client)).choices[0].text
    chunks = await streamed(client, "completions", TEXT | {"echo": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == echoed


@pytest.mark.parametrize("penalty", [1.3, 2.5])
async def test_repetition_is_penalised_as_by_transformers(
    client: httpx.AsyncClient, engine: TorchEngine, penalty: float
) -> None:
    ids = engine.model.tokenizer("hello").input_ids
    with torch.inference_mode():
        expected = engine.model.network.generate(
            torch.tensor([ids]),
            do_sample=False,
            max_new_tokens=20,
            use_cache=False,
            repetition_penalty=penalty,
        )
    text = (await complete(client, repetition_penalty=penalty, max_tokens=20)).choices[0].text
    assert text == engine.model.tokenizer.decode(expected[0, len(ids) :])
    assert text != (await complete(client, max_tokens=20)).choices[0].text


async def test_a_frequency_penalty_keeps_tokens_from_coming_again(client: httpx.AsyncClient) -> None:
    text = (await complete(client, frequency_penalty=2, presence_penalty=2, max_tokens=20)).choices[0].text
    assert len(set(text)) == 20


async def test_bias_decides(client: httpx.AsyncClient, engine: TorchEngine) -> None:
    token = engine.model.tokenizer("q").input_ids[0]
    assert (await complete(client, logit_bias={str(token): 100})).choices[0].text == "q" * 8
    response = await client.post("/v1/completions", json=TEXT | {"logit_bias": {"999999": 1}})
    assert response.json()["error"]["param"] == "logit_bias"


async def test_a_stop_string_over_several_tokens_ends_a_stream_before_it(client: httpx.AsyncClient) -> None:
    text = (await complete(client)).choices[0].text
    chunks = await streamed(client, "completions", TEXT | {"stop": ["never", text[2:6]]})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text[:2]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_choices_are_texts_of_their_own(client: httpx.AsyncClient) -> None:
    options = {"temperature": 1.5, "seed": 4, "n": 3}
    answer = await complete(client, **options)
    texts = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[0] == (await complete(client, temperature=1.5, seed=4)).choices[0].text
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 24)
    assert [choice.text for choice in (await complete(client, **options)).choices] == texts
    pieces: dict[int, str] = {}
    for chunk in await streamed(client, "completions", TEXT | options):
        (choice,) = chunk["choices"]
        pieces[choice["index"]] = pieces.get(choice["index"], "") + choice["text"]
    assert [pieces[index] for index in range(3)] == texts


async def test_prompts_of_one_request_are_answered_as_if_each_came_alone(
    client: httpx.AsyncClient, engine: TorchEngine
) -> None:
    prompts = ["hello", engine.model.tokenizer("other words").input_ids, "x"]
    options = {"temperature": 1.0, "seed": 9, "n": 2}
    answer = await complete(client, prompt=prompts, **options)
    alone = [await complete(client, prompt=prompt, **options) for prompt in prompts]
    expected = [choice.text for one in alone for choice in one.choices]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 5 + 11 + 1


async def test_choices_of_chat_have_a_role_each(client: httpx.AsyncClient) -> None:
    chunks = await streamed(client, "chat/completions", CHAT | {"n": 2, "max_tokens": 3})
    roles = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["delta"].get("role")]
    reasons = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert roles == [0, 1]
    assert sorted(reasons) == [0, 1]


async def test_an_answer_begun_with_penalties_goes_on_exactly(
    client: httpx.AsyncClient, engine: TorchEngine
) -> None:
    letters = engine.model.tokenizer(
        "abcdefghijklmnop"
    ).input_ids  # a token that is no whole text has no place
    options: dict[str, Any] = {"logit_bias": {str(letter): 50 for letter in letters}}
    options |= {"frequency_penalty": 1.0, "presence_penalty": 0.5, "repetition_penalty": 1.1}
    options |= {"temperature": 1.2, "seed": 5, "min_p": 0.01, "max_tokens": 12}
    text = (await chat(client, **options)).choices[0].message.content or ""
    assert len(text) == 12
    for place in (1, 5, 11):
        begun = [*CHAT["messages"], {"role": "assistant", "content": text[:place]}]
        rest = {"messages": begun, "continue_final_message": True, "max_tokens": 12 - place}
        assert (await chat(client, **options | rest)).choices[0].message.content == text[place:]


class TestGuided:
    """With llguidance, which is optional."""

    @pytest.fixture(autouse=True)
    def _library(self, engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("llguidance")
        names = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
        template = names + engine.model.tokenizer.chat_template
        monkeypatch.setattr(engine.model.tokenizer, "chat_template", template)

    @pytest.mark.parametrize(
        "sampling", [{}, {"temperature": 1.8, "seed": 3}, {"n": 2, "temperature": 1, "seed": 1}]
    )
    async def test_an_answer_keeps_to_its_schema(self, client: httpx.AsyncClient, sampling: Any) -> None:
        for choice in (await chat(client, response_format=FORMAT, **sampling)).choices:
            assert choice.finish_reason == "stop"
            found = orjson.loads(choice.message.content or "")
            assert found["colour"] in ("red", "green")
            assert set(found) <= {"colour", "sizes"}

    async def test_a_short_limit_does_not_cut_what_can_be_whole(self, client: httpx.AsyncClient) -> None:
        for most in (24, 30, 50):
            sampling = {"max_tokens": most, "temperature": most / 25, "seed": most}
            (choice,) = (await chat(client, response_format=FORMAT, **sampling)).choices
            assert choice.finish_reason == "stop", choice.message.content
            assert orjson.loads(choice.message.content or "")["colour"] in ("red", "green")

    async def test_json_mode_gives_an_object(self, client: httpx.AsyncClient, engine: TorchEngine) -> None:
        brace = engine.model.tokenizer("}").input_ids[0]
        asked = {"response_format": {"type": "json_object"}, "logit_bias": {str(brace): 100}}
        (choice,) = (await chat(client, **asked)).choices
        assert orjson.loads(choice.message.content or "") == {}
        (text,) = (await complete(client, **asked)).choices
        assert orjson.loads(text.text) == {}

    async def test_a_begun_answer_goes_on_within_its_schema(self, client: httpx.AsyncClient) -> None:
        options = {"response_format": FORMAT, "temperature": 1.8, "seed": 3}
        text = (await chat(client, **options)).choices[0].message.content or ""
        for place in (1, 9, len(text) - 1):
            begun = [*CHAT["messages"], {"role": "assistant", "content": text[:place]}]
            body = options | {"messages": begun, "continue_final_message": True}
            assert (await chat(client, **body)).choices[0].message.content == text[place:]
        begun = [*CHAT["messages"], {"role": "assistant", "content": "no JSON"}]
        body = CHAT | options | {"messages": begun, "continue_final_message": True}
        response = await client.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")

    @pytest.mark.parametrize(
        ("choice", "names", "reason"),
        [
            ("required", {"paint", "mix"}, "tool_calls"),
            ({"type": "function", "function": {"name": "paint"}}, {"paint"}, "stop"),
        ],
    )
    async def test_a_demanded_call_is_made(
        self, client: httpx.AsyncClient, choice: Any, names: set[str], reason: str
    ) -> None:
        body = {"tools": [PAINT, MIX], "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 200}
        body["response_format"] = FORMAT  # of texts, of which there is none
        (found,) = (await chat(client, **body, temperature=1.0, seed=2)).choices
        assert found.finish_reason == reason
        assert found.message.tool_calls is not None
        (call,) = found.message.tool_calls
        assert isinstance(call, ChatCompletionMessageFunctionToolCall)
        assert call.function.name in names
        arguments = orjson.loads(call.function.arguments)
        assert arguments == {} if call.function.name == "mix" else arguments["colour"] in ("red", "green")
        chunks = await streamed(client, "chat/completions", CHAT | body | {"temperature": 1.0, "seed": 2})
        deltas = [c["choices"][0]["delta"].get("tool_calls", []) for c in chunks]
        assert len([delta for delta in deltas if delta]) > 2
        pieces = [each["function"]["arguments"] for delta in deltas for each in delta]
        assert "".join(pieces) == call.function.arguments
        assert chunks[-1]["choices"][0]["finish_reason"] == reason

    async def test_several_calls_may_be_made(self, client: httpx.AsyncClient) -> None:
        body = {"tools": [MIX], "tool_choice": "required", "max_tokens": 300, "temperature": 2.0}
        found = [(await chat(client, **body, seed=seed)).choices[0] for seed in range(3)]
        assert all(choice.message.tool_calls for choice in found)

    @pytest.mark.parametrize(
        ("schema", "told"), [({"type": "no such"}, "type"), ({"$ref": "#/missing"}, "missing")]
    )
    async def test_a_schema_that_is_none_is_refused(
        self, client: httpx.AsyncClient, schema: Any, told: str
    ) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        response = await client.post("/v1/chat/completions", json=CHAT | {"response_format": form})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "response_format")
        assert told in error["message"]


async def test_without_the_library_a_format_is_refused_clearly(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for asked in ({"response_format": FORMAT}, {"tools": [PAINT], "tool_choice": "required"}):
        response = await client.post("/v1/chat/completions", json=CHAT | asked)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "unsupported_parameter")
        assert error["param"] in asked
        assert "trunkline[guided]" in error["message"]
    offered = CHAT | {"tools": [MIX], "max_tokens": 5}
    assert (await client.post("/v1/chat/completions", json=offered)).status_code == 200
