"""Models of an operator's own, through a real gateway and agent: examples, and models that misbehave."""

import io
import json
import re
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from tests.agent.serve.played_models import PICTURE
from tests.support.processes import Gateway, House, until

_PLAYED = "tests.agent.serve.played_models"


@dataclass(frozen=True, slots=True)
class Site:
    house: House
    gateway: Gateway
    key: str

    def ask(self, path: str, body: bytes, timeout_s: float = 30.0) -> tuple[int, bytes]:
        """Status and body of the answer to a POST."""
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/octet-stream"}
        request = urllib.request.Request(f"{self.gateway.url}{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def begin(self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Any:
        """The answer, while it comes."""
        fields = {"authorization": f"Bearer {self.key}", "content-type": "application/octet-stream"}
        request = urllib.request.Request(f"{self.gateway.url}{path}", body, fields | dict(headers or {}))
        return urllib.request.urlopen(request, timeout=60.0)

    def predict(self, model: str, value: Any) -> tuple[int, Any]:
        status, body = self.ask(f"/engines/{model}/predict", json.dumps(value).encode())
        return status, json.loads(body)

    def serve(self, *specs: str, name: str) -> None:
        """Start an agent for these classes."""
        named = [word for spec in specs for word in ("--python", spec)]
        self.house.agent(self.gateway, None, *named, "--devices", "cpu", name=name)

    def wait_for(self, model: str) -> None:
        self.house.wait_for_model(self.gateway, self.key, model)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with House(tmp_path_factory.mktemp("python-models")) as house:
        gateway = house.gateway()
        site = Site(house, gateway, gateway.key("tests"))
        played = (f"{_PLAYED}:{name}" for name in ("Counter", "Drawing", "Echo", "Moody", "Unloadable"))
        site.serve("deploy.examples.text_embedder:TextEmbedder", *played, name="models")
        yield site


async def test_the_text_embedder_is_called_with_openais_sdk(site: Site) -> None:
    pytest.importorskip("numpy")
    site.wait_for("text-embedder")
    async with AsyncOpenAI(base_url=site.gateway.base_url, api_key=site.key, max_retries=0) as sdk:
        texts = ["the cat sat on the mat", "a cat sat on a mat", "stock prices fell on Monday"]
        answer = await sdk.embeddings.create(model="text-embedder", input=texts)
        first, like, unlike = (entry.embedding for entry in answer.data)
        assert _product(first, like) > 0.6 > 0.3 > _product(first, unlike)
        assert _product(first, first) == pytest.approx(1.0, abs=1e-5)
        assert answer.usage.prompt_tokens == 17
        with pytest.raises(BadRequestError, match="must be a text"):
            await sdk.embeddings.create(model="text-embedder", input=[[1, 2]])


def _product(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_the_image_classifier_tells_shapes_apart(site: Site) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    from deploy.examples.image_classifier import LABELS, draw

    site.serve("deploy.examples.image_classifier:ImageClassifier", name="classifier")
    site.wait_for("image-classifier")
    for label in LABELS:
        file = io.BytesIO()
        draw(label, 5, 3, 2).resize((100, 100)).save(file, "PNG")
        status, body = site.ask("/engines/image-classifier/predict", file.getvalue())
        assert status == 200
        assert json.loads(body)["label"] == label
    status, body = site.ask("/engines/image-classifier/predict", b"no picture")
    assert status == 400
    assert json.loads(body)["error"]["code"] == "invalid_image"


def test_a_stream_comes_event_by_event(site: Site) -> None:
    site.wait_for("counter")
    status, body = site.ask("/engines/counter/predict", b"3")
    assert status == 200
    assert body == b"data: 1\n\ndata: 2\n\ndata: 3\n\ndata: [DONE]\n\n"


def test_what_a_model_says_of_its_progress_is_told_in_its_stream(site: Site, tmp_path: Path) -> None:
    site.wait_for("drawing")
    done, told, rest = tmp_path / "done", dict[str, Any](), b""
    for form, mark in (("1", b": progress "), ("events", b"data: ")):
        done.unlink(missing_ok=True)
        headers = {"accept": "text/event-stream", "x-trunkline-progress": form}
        with site.begin("/engines/drawing/predict", json.dumps(str(done)).encode(), headers) as answer:
            while told.get("text") != "half of it" or "preview" not in told:
                line = answer.readline()
                assert line, "it ended before it said how far it is"
                told = json.loads(line.removeprefix(mark)) if line.startswith(mark) else told
            done.touch()
            rest = answer.read()
        picture = {"type": "image/jpeg", "data": b64encode(PICTURE).decode()}
        assert told == {"fraction": 0.5, "text": "half of it", "preview": picture}
        told = {}
        assert b'data: {"drawn":true}\n\ndata: [DONE]\n\n' in rest
    with site.begin("/metrics") as answer:
        counted = re.search(
            rb'progress_delivery_seconds_count{model="drawing"} (\d+)', answer.read(), re.MULTILINE
        )
    assert counted is not None
    assert int(counted[1]) >= 2
    log = (site.house.directory / "models.log").read_text()
    assert log.count("report_progress was given a preview of 100000 bytes") == 1


def test_a_jobs_progress_is_that_of_its_model(site: Site, tmp_path: Path) -> None:
    site.wait_for("drawing")
    done = tmp_path / "done"
    body = json.dumps(str(done)).encode()
    with site.begin("/engines/drawing/predict", body, {"prefer": "respond-async"}) as answer:
        job = json.load(answer)["id"]

    def shown() -> dict[str, Any]:
        with site.begin(f"/v1/jobs/{job}") as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    until("the job has a preview", lambda: shown()["progress_preview"], 60.0)
    found = shown()
    assert (found["progress"], found["progress_text"]) == (0.5, "half of it")
    assert b64decode(found["progress_preview"]["data"]) == PICTURE
    done.touch()
    until("the job has ended", lambda: shown()["status"] == "succeeded", 60.0)
    assert shown()["progress_preview"] is None


def test_a_model_whose_load_raises_is_not_offered_and_the_others_go_on(site: Site) -> None:
    site.wait_for("echo")
    log = site.house.directory / "models.log"
    until("the agent says why", lambda: "load raised ValueError: no weights here" in log.read_text(), 60.0)
    assert "unloadable" not in site.gateway.models(site.key)
    assert site.predict("echo", {"a": 1}) == (200, {"a": 1})


def test_items_that_fail_get_errors_of_their_own(site: Site) -> None:
    site.wait_for("moody")
    assert site.predict("moody", "fine") == (200, "fine")
    for mood, status, code in (
        ("refused in decode", 400, "bad_request"),
        ("raise in decode", 500, "computation_failed"),
        ("raise in predict", 500, "computation_failed"),
        ("raise in encode", 500, "computation_failed"),
        ("too few", 500, "computation_failed"),
        ("memory", 503, "out_of_memory"),
    ):
        found, body = site.predict("moody", mood)
        assert (found, body["error"]["code"]) == (status, code), mood
    assert site.predict("moody", "fine") == (200, "fine")


def test_a_missing_module_is_an_error_at_once(site: Site) -> None:
    child = site.house.agent(site.gateway, None, "--python", "no_such_module:Model", name="missing")
    assert child.ended(60.0) == 2
    assert "there is no module 'no_such_module'" in child.tail()
