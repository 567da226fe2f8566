"""Bodies of requests become prompts: of workflows, of OpenAI's images and videos, of ComfyUI itself."""

from typing import Any

import orjson
import pytest

from agent.engines.comfyui.requests import AnswerForm, AskedPrompt, read_asked
from agent.engines.comfyui.workflows import InputMistake, Workflow, read_workflow

PROMPT: dict[str, Any] = {
    "1": {"class_type": "Paint", "inputs": {"text": ""}},
    "9": {"class_type": "SaveImage"},
}


def workflow(**bindings: Any) -> Workflow:
    types = dict.fromkeys(("width", "height", "steps", "n"), "integer")
    types |= {"text": "string", "image": "image", "cfg": "number", "tiled": "boolean"}
    inputs = {name: {"path": f"1.inputs.{name}", "type": kind} for name, kind in types.items()}
    inputs |= {
        "cfg": {"path": "1.inputs.cfg", "type": "number"},
        "n": {"path": "1.inputs.n", "type": "integer"},
    }
    inputs |= {"tiled": {"path": "1.inputs.tiled", "type": "boolean"}}
    return read_workflow("w", orjson.dumps({"workflow": PROMPT, "inputs": inputs, **bindings}))


IMAGES = {"prompt": "text", "size": ["width", "height"], "n": "n", "image": "image"}


def asked(path: str, body: object, of: Workflow | None = None, accept: str = "") -> AskedPrompt:
    return read_asked(path, of, "application/json", accept, orjson.dumps(body))


def form(**fields: str | bytes) -> tuple[str, bytes]:
    parts = b""
    for name, value in fields.items():
        filename = '; filename="x.png"' if isinstance(value, bytes) else ""
        data = value if isinstance(value, bytes) else value.encode()
        parts += f'--edge\r\ncontent-disposition: form-data; name="{name}"{filename}\r\n\r\n'.encode() + data
        parts += b"\r\n"
    return "multipart/form-data; boundary=edge", parts + b"--edge--\r\n"


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", AnswerForm.FILES),
        ("*/*", AnswerForm.FILES),
        ("application/json", AnswerForm.JSON),
        ("text/event-stream", AnswerForm.EVENTS),
    ],
)
def test_accept_says_what_the_answer_looks_like(accept: str, wanted: AnswerForm) -> None:
    found = asked("/v1/workflows/w", {"inputs": {"text": "a cat"}}, workflow(outputs=["9"]), accept)
    assert (found.form, found.outputs) == (wanted, ("9",))
    assert found.prompt["1"]["inputs"]["text"] == "a cat"


def test_the_fields_of_a_form_are_the_inputs() -> None:
    content_type, body = form(text="a cat", steps="5", cfg="2.5", tiled="true", image=b"\x89PNG\r\n..")
    found = read_asked("/v1/workflows/w", workflow(), content_type, "", body)
    assert found.prompt["1"]["inputs"] == {"text": "a cat", "steps": 5, "cfg": 2.5, "tiled": True}
    assert [file.data for file in found.files] == [b"\x89PNG\r\n.."]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", "five"),
        ("steps", "9" * 30),
        ("steps", "-" + "9" * 400),
        ("steps", "9" * 5000),
        ("cfg", "1e999"),
        ("cfg", "nan"),
    ],
)
def test_a_text_that_is_no_number_of_json_is_refused(name: str, value: str) -> None:
    content_type, body = form(**{name: value})
    with pytest.raises(InputMistake, match="not a string") as caught:
        read_asked("/v1/workflows/w", workflow(), content_type, "", body)
    assert caught.value.param == f"inputs.{name}"
    with pytest.raises(InputMistake, match="not a string"):
        asked("/v1/images/generations", {"prompt": "x", name: value}, workflow(images=IMAGES))


def test_a_workflow_that_is_not_declared_comes_with_the_request() -> None:
    assert asked("/v1/workflows/comfyui", {"workflow": PROMPT}).prompt == PROMPT
    wrong: dict[str, Any]
    for wrong in ({}, {"inputs": {}}, {"workflow": PROMPT, "inputs": {}}, {"workflow": {"1": 5}}):
        with pytest.raises(InputMistake):
            asked("/v1/workflows/comfyui", wrong)


def test_openais_members_are_bound_and_others_called_as_inputs() -> None:
    body = {
        "model": "w",
        "prompt": "a cat",
        "size": "640x480",
        "n": 2,
        "steps": 7,
        "quality": "auto",
        "user": "u",
    }
    found = asked("/v1/images/generations", body, workflow(images=IMAGES))
    wanted = {"text": "a cat", "width": 640, "height": 480, "n": 2, "steps": 7}
    assert (found.form, found.prompt["1"]["inputs"]) == (AnswerForm.IMAGES, wanted)
    found = asked("/v1/images/generations", {"prompt": "x", "stream": True}, workflow(images=IMAGES))
    assert found.form is AnswerForm.IMAGE_EVENTS


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x", "size": "large"}, "size"),
        ({"prompt": "x", "quality": "high"}, "quality"),
        ({"prompt": "x", "response_format": "url"}, "response_format"),
        ({"prompt": "x", "depth": 3}, "depth"),
        ({"prompt": 5}, "text"),
    ],
)
def test_what_the_workflow_cannot_do_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InputMistake) as caught:
        asked("/v1/images/generations", body, workflow(images=IMAGES))
    assert caught.value.param == param


def test_one_image_is_what_a_workflow_makes_without_a_binding_for_more() -> None:
    plain = workflow(images={"prompt": "text"})
    found = asked("/v1/images/generations", {"prompt": "x", "size": "auto"}, plain)
    assert found.prompt["1"]["inputs"] == {"text": "x"}
    with pytest.raises(InputMistake, match="size"):
        asked("/v1/images/generations", {"prompt": "x", "size": "1x1"}, plain)


def test_edits_and_videos_need_their_bindings() -> None:
    content_type, body = form(prompt="x", image=b"\xff\xd8\xff..")
    found = read_asked("/v1/images/edits", workflow(images=IMAGES), content_type, "", body)
    assert found.files[0].media_type == "image/jpeg"
    videos = {"prompt": "text", "seconds": "n", "size": ["width", "height"]}
    found = asked("/v1/videos", {"prompt": "x", "seconds": "4", "size": "8x8"}, workflow(videos=videos))
    assert found.prompt["1"]["inputs"] == {"text": "x", "n": 4, "width": 8, "height": 8}
    for path in ("/v1/images/edits", "/v1/images/generations", "/v1/videos"):
        with pytest.raises(InputMistake, match="declares no"):
            asked(path, {"prompt": "x"}, workflow())
        with pytest.raises(InputMistake, match="no declared workflow"):
            asked(path, {"prompt": "x"})


def test_comfyuis_own_request_keeps_its_members_but_the_id() -> None:
    body = {"prompt": PROMPT, "client_id": "me", "prompt_id": "mine", "extra_data": {"a": 1}}
    found = asked("/prompt", body)
    assert (found.form, found.client_id) == (AnswerForm.PROMPT, "me")
    assert found.extra == {"extra_data": {"a": 1}}
    wrong: dict[str, Any]
    for wrong in ({}, {"prompt": []}, {"prompt": PROMPT, "extra_data": 5}):
        with pytest.raises(InputMistake):
            asked("/prompt", wrong)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InputMistake):
        read_asked("/v1/workflows/w", workflow(), "application/json", "", body)


@pytest.mark.parametrize("end", [0, 10, 60])
def test_a_form_that_is_cut_off_is_refused(end: int) -> None:
    content_type, body = form(text="a cat", steps="5")
    with pytest.raises(InputMistake, match="form"):
        read_asked("/v1/workflows/w", workflow(), content_type, "", body[:end])
