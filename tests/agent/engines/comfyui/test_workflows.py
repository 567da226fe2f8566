"""A workflow's file declares inputs, and what clients give is bound only where it fits."""

import base64
from typing import Any

import orjson
import pytest

from agent.engines.comfyui.workflows import (
    DeclaredInput,
    InputMistake,
    WorkflowMistake,
    bind,
    random_integer,
    read_workflow,
)

PROMPT: dict[str, Any] = {
    "3": {"class_type": "KSampler", "inputs": {"seed": 1, "steps": 20, "model": ["4", 0]}},
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a"}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "before"}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "before"}},
    "10": {"class_type": "LoadImage", "inputs": {"image": "x.png"}},
}
INPUTS: dict[str, Any] = {
    "prompt": {"path": ["6.inputs.text", "7.inputs.text"], "type": "string", "required": True},
    "seed": {"path": "3.inputs.seed", "type": "integer", "random": True, "maximum": 9},
    "steps": {"path": "3.inputs.steps", "type": "integer", "minimum": 1, "maximum": 50},
    "cfg": {"path": "3.inputs.cfg", "type": "number"},
    "tiled": {"path": "3.inputs.tiled", "type": "boolean"},
    "model": {"path": "4.inputs.ckpt_name", "type": "string", "choices": ["a", "b"]},
    "image": {"path": "10.inputs.image", "type": "image"},
}


def written(**changes: Any) -> bytes:
    return orjson.dumps({"workflow": PROMPT, "inputs": INPUTS, **changes})


def test_inputs_go_to_all_their_places_and_the_workflow_stays_as_it_is() -> None:
    workflow = read_workflow("w", written())
    prompt, files = bind(workflow, {"prompt": "a cat", "steps": 5, "cfg": 2, "tiled": True, "model": "b"})
    assert [prompt[node]["inputs"]["text"] for node in ("6", "7")] == ["a cat", "a cat"]
    assert prompt["3"]["inputs"] | {"seed": 0} == {
        "seed": 0,
        "steps": 5,
        "cfg": 2,
        "tiled": True,
        "model": ["4", 0],
    }
    assert prompt["4"]["inputs"]["ckpt_name"] == "b"
    assert workflow.prompt == PROMPT
    assert files == ()
    assert workflow.input_at("7", "text") == "prompt"
    assert workflow.input_at("7", "clip") is None


def test_a_random_integer_keeps_its_bounds() -> None:
    workflow = read_workflow("w", written())
    seeds = {bind(workflow, {"prompt": ""})[0]["3"]["inputs"]["seed"] for _ in range(200)}
    assert seeds <= set(range(10))
    assert len(seeds) > 1
    assert bind(workflow, {"prompt": "", "seed": 4})[0]["3"]["inputs"]["seed"] == 4
    wide = DeclaredInput(path=("1.inputs.x",), type="integer", random=True, minimum=-3)
    assert -3 <= random_integer(wide) < 2**53


@pytest.mark.parametrize("text", ["{}", "data:image/png;base64,{}"])
def test_a_file_is_called_by_its_content(text: str) -> None:
    data = b"\x89PNG\r\n\x1a\n..."
    given = {"prompt": "", "image": text.format(base64.b64encode(data).decode())}
    prompt, (file,) = bind(read_workflow("w", written()), given)
    assert (file.data, file.media_type, file.places) == (data, "image/png", (("10", "image"),))
    assert file.name == bind(read_workflow("w", written()), given)[1][0].name
    assert file.name.endswith(".png")
    assert prompt["10"] == PROMPT["10"]


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ({}, "inputs.prompt", "missing_input"),
        ({"prompt": None}, "inputs.prompt", "missing_input"),
        ({"prompt": "", "depth": 1}, "inputs.depth", "unknown_input"),
        ({"prompt": ["4", 0]}, "inputs.prompt", "invalid_type"),
        ({"prompt": "", "steps": 2.5}, "inputs.steps", "invalid_type"),
        ({"prompt": "", "steps": True}, "inputs.steps", "invalid_type"),
        ({"prompt": "", "steps": 0}, "inputs.steps", "invalid_input"),
        ({"prompt": "", "steps": 51}, "inputs.steps", "invalid_input"),
        ({"prompt": "", "cfg": "2"}, "inputs.cfg", "invalid_type"),
        ({"prompt": "", "tiled": 1}, "inputs.tiled", "invalid_type"),
        ({"prompt": "", "model": "c"}, "inputs.model", "invalid_input"),
        ({"prompt": "", "image": 5}, "inputs.image", "invalid_type"),
        ({"prompt": "", "image": "no base64!"}, "inputs.image", "invalid_input"),
        ({"prompt": "", "image": "http://elsewhere/x.png"}, "inputs.image", "invalid_input"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(given: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InputMistake) as caught:
        bind(read_workflow("w", written()), given)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_an_export_without_declarations_is_a_workflow_without_inputs() -> None:
    workflow = read_workflow("w", orjson.dumps(PROMPT))
    assert (workflow.prompt, workflow.inputs) == (PROMPT, {})
    assert "KSampler" in workflow.classes


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "no JSON"),
        (b"[]", "no object"),
        (orjson.dumps({"nodes": [], "links": []}), "Export"),
        (orjson.dumps({"workflow": {"1": {"inputs": {}}}}), "no class_type"),
        (orjson.dumps({"workflow": {"1": {"class_type": "A", "inputs": 5}}}), "no object"),
        (orjson.dumps({"workflow": {}}), "workflow"),
        (written(surplus=1), "surplus"),
        (written(inputs={"a": {"path": "text", "type": "string"}}), "NODE.inputs.NAME"),
        (written(inputs={"a": {"path": "99.inputs.text", "type": "string"}}), "no node '99'"),
        (written(inputs={"a": {"path": "6.inputs.text", "type": "text"}}), "type"),
        (written(inputs={"a": {"path": "6.inputs.text", "type": "string", "random": True}}), "random"),
        (written(outputs=["99"]), "no node '99'"),
        (written(images={"prompt": "words"}), "no input 'words'"),
        (written(videos={"prompt": "prompt", "size": ["steps", "height"]}), "no input 'height'"),
    ],
)
def test_a_file_that_is_no_workflow_says_why(data: bytes, why: str) -> None:
    with pytest.raises(WorkflowMistake, match=why):
        read_workflow("w", data)
