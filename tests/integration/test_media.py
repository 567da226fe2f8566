"""Videos, images and speech with OpenAI's SDK on a running gateway, whose engine makes videos both ways."""

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.integration.conftest import MODEL, Site, site_with
from tests.support.processes import Engine, fetch, until
from tests.support.scripted_engine.videos import video_bytes

SETTINGS = """
[jobs]
look_s = 0.1
retry_s = 0.1
"""
MIB = 1 << 20

pytestmark = [
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),  # images.create_variation
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_with(tmp_path_factory.mktemp("media"), SETTINGS) as site:
        yield site


@pytest.fixture
def client(site: Site) -> Iterator[OpenAI]:
    with OpenAI(base_url=site.base_url, api_key=site.key, max_retries=0, timeout=60) as made:
        yield made


def asked(engine: Engine, words: str) -> bool:
    return any(words in line for line in engine.stats()["requests"])


def test_videos_that_the_engine_makes_by_itself(site: Site, client: OpenAI) -> None:
    site.engine.direct(once=[{"video_steps": 3, "video_bytes": 3 * MIB}])
    image = ("a.png", b"\x89PNG" + bytes(2 * MIB), "image/png")
    video = client.videos.create_and_poll(
        prompt="rain", model=MODEL, seconds="8", size="1280x720", input_reference=image, poll_interval_ms=100
    )
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    assert (video.prompt, video.seconds, video.size) == ("rain", "2", "64x32"), "as its engine made it"
    film = video_bytes(3 * MIB, "rain")
    assert client.videos.download_content(video.id).read() == film
    part = client.videos.with_raw_response.download_content(
        video.id, variant="video", extra_headers={"range": "bytes=1000000-1999999"}
    )
    assert (part.status_code, part.content) == (206, film[1_000_000:2_000_000])
    until("the engine keeps it no more", lambda: asked(site.engine, "DELETE /v1/videos/"))
    assert client.videos.list(limit=1).data[0].id == video.id
    assert client.videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(video.id)


def test_how_far_it_is_shows_and_one_that_runs_is_deleted(site: Site, client: OpenAI) -> None:
    site.engine.direct(once=[{"video_steps": 100}])
    video = client.videos.create(prompt="slow", model=MODEL)
    seen: list[Any] = []

    def moves() -> bool:
        seen.append(client.videos.retrieve(video.id))
        return bool(seen[-1].progress)

    until("it says how far it is", moves, 60.0)
    assert seen[-1].status == "in_progress"
    before = sum("DELETE /v1/videos/" in line for line in site.engine.stats()["requests"])
    assert client.videos.delete(video.id).deleted
    until(
        "the engine makes it no more",
        lambda: sum("DELETE /v1/videos/" in line for line in site.engine.stats()["requests"]) > before,
        30.0,
    )


def test_an_engine_that_answers_with_the_video_and_a_remix_of_it(site: Site, client: OpenAI) -> None:
    video = client.videos.create_and_poll(prompt="sun", model=MODEL, seconds="4", poll_interval_ms=100)
    assert client.videos.download_content(video.id).read() == video_bytes(100_000, "sun")
    remix = client.videos.poll(client.videos.remix(video.id, prompt="moon").id, poll_interval_ms=100)
    assert (remix.status, remix.prompt, remix.remixed_from_video_id) == ("completed", "moon", video.id)
    assert client.videos.download_content(remix.id).read() == video_bytes(100_000, "moon")


def test_one_whose_engine_fails_is_made_again_or_has_failed(site: Site, client: OpenAI) -> None:
    site.engine.direct(once=[{"fault": "die"}, {"video_steps": 1, "video_error": "500"}, {"video_steps": 1}])
    video = client.videos.create_and_poll(prompt="again", model=MODEL, poll_interval_ms=100)
    assert video.status == "completed"
    assert client.videos.download_content(video.id).read() == video_bytes(100_000, "again")
    site.engine.direct(once=[{"video_steps": 1, "video_error": "422"}])
    video = client.videos.create_and_poll(prompt="never", model=MODEL, poll_interval_ms=100)
    assert video.status == "failed"
    assert video.error is not None
    assert video.error.message == "the engine could not make it"
    with pytest.raises(openai.NotFoundError):
        client.videos.create(prompt="x", model="nobody-serves-this")


def test_images_speech_and_scores_at_once_and_as_jobs(site: Site, client: OpenAI) -> None:
    """The engine echoes what arrived: each path, its fields and the digest of its files."""
    large = bytes(range(256)) * (12 * MIB // 256)
    files = [("one.png", large, "image/png"), ("two.png", b"second", "image/png")]
    digest = hashlib.sha256(large + b"second" + b"mask").hexdigest()
    raw, mask = client.images.with_raw_response, ("mask.png", b"mask", "image/png")
    edited = json.loads(raw.edit(image=files, mask=mask, prompt="p", model=MODEL).content)
    assert (edited["path"], edited["sha256"]) == ("/v1/images/edits", digest)
    later = raw.edit(
        image=files, mask=mask, prompt="p", model=MODEL, extra_headers={"prefer": "respond-async"}
    )
    assert later.status_code == 202
    found = result_of(site, json.loads(later.content)["id"])
    assert (found["path"], found["sha256"], found["fields"]["prompt"]) == ("/v1/images/edits", digest, "p")
    varied = json.loads(raw.create_variation(image=files[1], model=MODEL).content)
    assert varied["path"] == "/v1/images/variations"
    heard = client.audio.transcriptions.create(file=("a.wav", io.BytesIO(large)), model=MODEL)
    assert heard.text == f"{hashlib.sha256(large).hexdigest()} {heard.text.split()[1]}"
    for path in ("/v1/images/generations", "/v1/audio/speech", "/v1/moderations"):
        body = {"path": path, "body": {"model": MODEL, "prompt": "x", "input": "x", "voice": "v"}}
        made = fetch(f"{site.gateway.url}/v1/jobs", body=body, key=site.key)
        assert result_of(site, made["id"])["path"] == path
    moderated = client.moderations.with_raw_response.create(model=MODEL, input="x")
    assert json.loads(moderated.content)["path"] == "/v1/moderations"


def result_of(site: Site, job_id: str) -> Any:
    job = f"{site.gateway.url}/v1/jobs/{job_id}"
    until("it is answered", lambda: fetch(job, key=site.key)["status"] == "succeeded", 60.0)
    return fetch(f"{job}/result", key=site.key)


def test_images_in_a_batch(site: Site, client: OpenAI, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    line = {"custom_id": "a", "method": "POST", "url": "/v1/images/edits"}
    lines.write_text(json.dumps(line | {"body": {"model": MODEL, "prompt": "p", "images": []}}) + "\n")
    with lines.open("rb") as opened:
        file = client.files.create(file=opened, purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/images/edits", completion_window="24h")
    until("it is done", lambda: client.batches.retrieve(batch.id).status == "completed", 60.0)
    output = client.batches.retrieve(batch.id).output_file_id
    assert output is not None
    (answer,) = [json.loads(each) for each in client.files.content(output).text.splitlines()]
    assert (answer["custom_id"], answer["response"]["body"]["path"]) == ("a", "/v1/images/edits")
