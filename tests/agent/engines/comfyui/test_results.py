"""What ComfyUI says of a prompt becomes files or an error that names node and input."""

from typing import Any

import orjson
import pytest

from agent.engines.comfyui.results import PromptError, failure_of, output_files, refusal
from agent.engines.comfyui.workflows import read_workflow


def item(name: str, kind: str = "output", **more: Any) -> dict[str, Any]:
    return {"filename": name, "subfolder": "a b", "type": kind, **more}


def test_saved_files_are_the_outputs_and_previews_only_without_them() -> None:
    outputs: dict[str, Any] = {
        "5": {"images": [item("p.png", "temp")]},
        "9": {"images": [item("a.png"), item("b.png")], "animated": [False], "text": ["words"], "x": 5},
    }
    record = {"outputs": outputs}
    assert [each.filename for each in output_files(record, ())] == ["a.png", "b.png"]
    assert [each.filename for each in output_files(record, ("5",))] == ["p.png"]
    assert output_files(record, ())[0].path == "/view?filename=a.png&subfolder=a+b&type=output"
    for empty in ({}, {"outputs": 5}, {"outputs": {"9": 5}}, {"outputs": {"9": {"images": [5, {}]}}}):
        assert output_files(empty, ()) == []


def record(*messages: Any, status: str = "error") -> dict[str, Any]:
    return {"status": {"status_str": status, "messages": list(messages)}}


def test_failures_name_the_node_and_its_error() -> None:
    error = {"node_id": "3", "node_type": "KSampler", "exception_message": "boom\n"}
    error["exception_type"] = "torch.OutOfMemoryError"
    failure = failure_of(record(["execution_start", {}], ["execution_error", error]))
    assert failure == PromptError(500, "Node 3 (KSampler) failed: OutOfMemoryError: boom", "workflow_failed")
    assert failure.to_dict()["type"] == "engine_error"
    interrupted = failure_of(record(["execution_interrupted", {}]))
    assert interrupted is not None
    assert interrupted.code == "workflow_interrupted"
    assert failure_of(record()) is not None
    assert failure_of(record(5, ["x"], status="success")) is None
    assert failure_of({"status": None}) is None


def test_a_refused_input_is_called_as_the_client_calls_it() -> None:
    prompt = {"4": {"class_type": "Loader", "inputs": {}}}
    inputs = {"model": {"path": "4.inputs.ckpt_name", "type": "string"}}
    workflow = read_workflow("w", orjson.dumps({"workflow": prompt, "inputs": inputs}))
    first = {
        "type": "value_not_in_list",
        "message": "Value not in list",
        "details": "ckpt_name: 'x' not in []",
    }
    first["extra_info"] = {"input_name": "ckpt_name"}  # type: ignore[assignment]
    said = {"error": {}, "node_errors": {"4": {"class_type": "Loader", "errors": [first]}}}
    error = refusal(400, said, workflow)
    assert (error.status, error.code, error.param) == (400, "value_not_in_list", "model")
    assert "Node 4 (Loader): Value not in list: ckpt_name: 'x'" in error.message
    assert refusal(400, said, None).param == "4.inputs.ckpt_name"


@pytest.mark.parametrize(
    ("status", "said", "code", "told"),
    [
        (400, {"error": {"message": "node X does not exist.", "details": "#1"}}, "missing_node", 400),
        (400, {"error": {"type": "prompt_no_outputs", "message": "none"}}, "prompt_no_outputs", 400),
        (400, None, "invalid_workflow", 400),
        (400, {"error": 5, "node_errors": {"1": 5}}, "invalid_workflow", 400),
        (500, None, "workflow_failed", 502),
        (401, {}, "workflow_failed", 502),
    ],
)
def test_other_refusals_say_what_they_can(status: int, said: Any, code: str, told: int) -> None:
    error = refusal(status, said, None)
    assert (error.code, error.status) == (code, told)
