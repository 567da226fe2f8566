"""Transcriptions over HTTP by a tiny model; their texts are those of transformers' own ``generate``."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import torch
from openai.types.audio import Transcription

from agent.engines.torch.engine import TorchEngine
from agent.engines.torch.http import EngineHTTP
from agent.engines.torch.startup import EngineOptions
from tests.support import tiny_whisper
from tests.support.sounds import Samples, recording, tone

RATE = 16_000


def spoken(seconds: float) -> tuple[Samples, bytes]:
    """A sound, and the recording of it."""
    samples = tone(seconds, RATE)
    return samples, recording(samples, RATE)


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchEngine]:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("whisper") / "tiny"
    tiny_whisper.make(directory)
    engine = TorchEngine.load(EngineOptions(model=directory, name="w", device="cpu"))
    yield engine
    assert engine.stop(timeout_s=5.0)


@pytest.fixture
async def asking(hearing: TorchEngine) -> AsyncIterator[httpx.AsyncClient]:
    hearing.start(lambda reason: None)
    transport = httpx.ASGITransport(EngineHTTP(hearing, None).app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=60) as client:
        yield client
    assert (hearing.running, hearing.waiting, hearing.admission.taken) == (0, 0, 0)


async def ask(client: httpx.AsyncClient, data: bytes, **fields: Any) -> httpx.Response:
    fields = {"model": "w"} | fields
    return await client.post("/v1/audio/transcriptions", files={"file": ("a.wav", data)}, data=fields)


def expected(engine: TorchEngine, samples: Any, *, long: bool = False, **options: Any) -> str:
    """By the model alone."""
    model = engine.model
    how = {"truncation": False, "padding": "longest"} if long else {}
    given = model.processor.feature_extractor(
        samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, **how
    )
    options |= {"return_timestamps": True} if long else {}
    with torch.inference_mode():
        found = model.network.generate(
            given.input_features, attention_mask=given.attention_mask, task="transcribe", **options
        )
    return str(model.tokenizer.decode(found[0], skip_special_tokens=True)).strip()


def test_the_engine_offers_audio_and_nothing_else(hearing: TorchEngine) -> None:
    assert hearing.facts.routes == ("audio",)
    assert hearing.facts.slots == 1


@pytest.mark.parametrize("language", ["en", "de"])
async def test_a_recording_becomes_the_models_text(
    asking: httpx.AsyncClient, hearing: TorchEngine, language: str
) -> None:
    samples, data = spoken(2.5)
    body = (await ask(asking, data, language=language)).json()
    found = Transcription.model_validate(body, strict=True)
    assert found.text == expected(hearing, samples, language=language)
    assert found.text
    assert body["usage"] == {"type": "duration", "seconds": 3}
    plain = await ask(asking, data, language=language, response_format="text")
    assert plain.headers["content-type"].startswith("text/plain")
    assert plain.text == found.text + "\n"


async def test_of_a_prompt_that_is_too_long_its_end_counts(
    asking: httpx.AsyncClient, hearing: TorchEngine
) -> None:
    samples, data = spoken(1)
    most = hearing.model.network.config.max_target_positions // 2 - 1
    said = "".join(chr(ord("a") + place % 26) for place in range(4000))
    ids = hearing.model.processor.get_prompt_ids(said, return_tensors="pt")
    assert len(ids) > hearing.model.network.config.max_target_positions
    answer = await ask(asking, data, language="en", prompt=said)
    assert answer.status_code == 200
    ids = torch.cat((ids[:1], ids[-most:]))
    assert answer.json()["text"] == expected(hearing, samples, language="en", prompt_ids=ids)


async def test_a_recording_longer_than_the_models_window_is_heard_whole(
    asking: httpx.AsyncClient, hearing: TorchEngine
) -> None:
    samples, data = spoken(33)
    body = (await ask(asking, data, language="en")).json()
    assert body["text"] == expected(hearing, samples, long=True, language="en")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"language": "xx"}, "language"),
        ({"response_format": "srt"}, "response_format"),
        ({"temperature": "hot"}, "temperature"),
        ({"prompt": "a <|endoftext|> b"}, "prompt"),
        ({"stream": "true"}, "stream"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    asking: httpx.AsyncClient, fields: dict[str, str], param: str
) -> None:
    response = await ask(asking, spoken(0.1)[1], **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_bodies_that_are_no_recording_are_refused(asking: httpx.AsyncClient) -> None:
    path = "/v1/audio/transcriptions"
    for response in (
        await ask(asking, b"RIFF no recording"),
        await ask(asking, spoken(0)[1]),
        await asking.post(path, data={"file": "text"}, files={"other": b"x"}),
        await asking.post(path, json={"model": "w"}),
        await asking.post(path, content=b"--x", headers={"content-type": "multipart/form-data; boundary=y"}),
        await asking.post(path, content=b"x", headers={"content-type": "multipart/form-data"}),
    ):
        assert response.status_code == 400, response.text
    assert (await ask(asking, spoken(0.1)[1], model="other")).status_code == 404
