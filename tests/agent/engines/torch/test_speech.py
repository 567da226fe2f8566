"""Transcriptions over HTTP by a tiny model; their texts are those of transformers' own ``generate``."""

import io
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from openai.types.audio import Transcription

from agent.engines.torch.engine import TorchEngine
from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.http import EngineHTTP
from agent.engines.torch.speech import read_recording
from agent.engines.torch.startup import EngineOptions
from tests.support import tiny_whisper

HOW = "pip install 'trunkline[audio]'"
soundfile: Any = pytest.importorskip("soundfile", reason=HOW)
pytest.importorskip("soxr", reason=HOW)

RATE = 16_000


def tone(seconds: float, rate: int = RATE) -> Any:
    times = np.arange(int(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * 440 * times) * np.sin(3 * times)).astype("float32")


def recording(samples: Any, rate: int = RATE, kind: str = "WAV", subtype: str = "FLOAT") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


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
    samples = tone(2.5)
    body = (await ask(asking, recording(samples), language=language)).json()
    found = Transcription.model_validate(body, strict=True)
    assert found.text == expected(hearing, samples, language=language)
    assert found.text
    assert body["usage"] == {"type": "duration", "seconds": 3}
    plain = await ask(asking, recording(samples), language=language, response_format="text")
    assert plain.headers["content-type"].startswith("text/plain")
    assert plain.text == found.text + "\n"


async def test_a_recording_longer_than_the_models_window_is_heard_whole(
    asking: httpx.AsyncClient, hearing: TorchEngine
) -> None:
    samples = tone(33)
    body = (await ask(asking, recording(samples), language="en")).json()
    assert body["text"] == expected(hearing, samples, long=True, language="en")


@pytest.mark.parametrize(("kind", "subtype"), [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("WAV", "PCM_16")])
def test_recordings_of_several_kinds_rates_and_channels_are_read(kind: str, subtype: str) -> None:
    samples = tone(1.0, 44_100)
    data = recording(np.stack([samples, samples], axis=1), 44_100, kind, subtype)
    found, duration_s = read_recording(data, RATE)
    assert duration_s == pytest.approx(1.0, abs=0.05)
    wanted = tone(1.0)
    assert abs(len(found) - len(wanted)) < RATE // 20
    length = min(len(found), len(wanted))
    assert float(np.abs(found[:length] - wanted[:length]).mean()) < 0.02


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"language": "xx"}, "language"),
        ({"response_format": "srt"}, "response_format"),
        ({"temperature": "hot"}, "temperature"),
        ({"stream": "true"}, "stream"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    asking: httpx.AsyncClient, fields: dict[str, str], param: str
) -> None:
    response = await ask(asking, recording(tone(0.1)), **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_bodies_that_are_no_recording_are_refused(asking: httpx.AsyncClient) -> None:
    path = "/v1/audio/transcriptions"
    for response in (
        await ask(asking, b"RIFF no recording"),
        await ask(asking, recording(tone(0))),
        await asking.post(path, data={"file": "text"}, files={"other": b"x"}),
        await asking.post(path, json={"model": "w"}),
        await asking.post(path, content=b"--x", headers={"content-type": "multipart/form-data; boundary=y"}),
        await asking.post(path, content=b"x", headers={"content-type": "multipart/form-data"}),
    ):
        assert response.status_code == 400, response.text
    assert (await ask(asking, recording(tone(0.1)), model="other")).status_code == 404


def test_without_the_libraries_recordings_are_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(InvalidRequest, match=r"trunkline\[audio\]"):
        read_recording(recording(tone(0.1)), RATE)
