"""What ComfyUI says became of a prompt: its history, its files, its errors. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from agent.engines.comfyui.workflows import Workflow

FILES = 256
"""Most files of one prompt."""
MESSAGE_CHARS = 2000


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a node wrote."""

    node: str
    filename: str
    subfolder: str
    type: str

    @property
    def path(self) -> str:
        """Where ComfyUI has it."""
        asked = {"filename": self.filename, "subfolder": self.subfolder, "type": self.type}
        return f"/view?{urlencode(asked)}"


@dataclass(frozen=True, slots=True)
class PromptError:
    """Why a prompt came to nothing, as its client is told."""

    status: int
    message: str
    code: str
    param: str | None = None

    def to_dict(self) -> dict[str, Any]:
        kind = "engine_error" if self.status >= 500 else "invalid_request_error"
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


def output_files(record: Mapping[str, Any], wanted: tuple[str, ...]) -> list[OutputFile]:
    """The files in a record of the history, of the nodes ``wanted`` (empty: of all); those that were saved,
    or if there are none, those for previews."""
    outputs = record.get("outputs")
    nodes = outputs if isinstance(outputs, dict) else {}
    found = [
        _file(str(node), item)
        for node in (wanted or nodes)
        for items in _lists(nodes.get(node))
        for item in items
        if isinstance(item, dict) and isinstance(item.get("filename"), str)
    ]
    saved = [each for each in found if each.type == "output"]
    return (saved or found)[: FILES + 1]


def _file(node: str, item: dict[str, Any]) -> OutputFile:
    subfolder, kind = str(item.get("subfolder") or ""), str(item.get("type") or "output")
    return OutputFile(node, item["filename"], subfolder, kind)


def _lists(said: object) -> list[list[Any]]:
    return [items for items in said.values() if isinstance(items, list)] if isinstance(said, dict) else []


def failure_of(record: Mapping[str, Any]) -> PromptError | None:
    """Why the prompt of a record failed; None: it did not."""
    status = record.get("status")
    if not isinstance(status, dict) or status.get("status_str") != "error":
        return None
    messages = status.get("messages")
    for entry in reversed(messages if isinstance(messages, list) else []):
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], dict):
            continue
        if entry[0] == "execution_interrupted":
            return PromptError(500, "The prompt was interrupted at the engine.", "workflow_interrupted")
        if entry[0] == "execution_error":
            return _execution_error(entry[1])
    return PromptError(500, "The engine failed on the prompt and does not say why.", "workflow_failed")


def _execution_error(data: Mapping[str, Any]) -> PromptError:
    kind = str(data.get("exception_type", "")).rpartition(".")[2]
    words = str(data.get("exception_message", "")).strip()
    node = f"Node {data.get('node_id')} ({data.get('node_type')})"
    return PromptError(500, f"{node} failed: {kind}: {words}"[:MESSAGE_CHARS], "workflow_failed")


def refusal(status: int, said: object, workflow: Workflow | None) -> PromptError:
    """Why ``POST /prompt`` was answered with ``status``: a node that is not there, or an input that a node
    does not take. ``said`` is the answer's JSON, if it is some."""
    answer = said if isinstance(said, dict) else {}
    if status >= 500 or status in (401, 403):
        return PromptError(502, f"The engine answers the prompt with {status}.", "workflow_failed")
    errors = answer.get("node_errors")
    for node, found in errors.items() if isinstance(errors, dict) else ():
        listed = found.get("errors") if isinstance(found, dict) else None
        if isinstance(listed, list) and listed and isinstance(listed[0], dict):
            return _node_error(str(node), found, listed[0], workflow)
    error = answer.get("error")
    told = error if isinstance(error, dict) else {}
    words = " ".join(str(told[part]) for part in ("message", "details") if told.get(part))
    code = "missing_node" if "does not exist" in words else str(told.get("type") or "invalid_workflow")
    return PromptError(400, f"The engine refuses the workflow: {words or status}"[:MESSAGE_CHARS], code)


def _node_error(
    node: str, found: Mapping[str, Any], error: Mapping[str, Any], workflow: Workflow | None
) -> PromptError:
    extra = error.get("extra_info")
    key = str(extra.get("input_name", "")) if isinstance(extra, dict) else ""
    name = None if workflow is None else workflow.input_at(node, key)
    message = f"Node {node} ({found.get('class_type')}): {error.get('message')}: {error.get('details')}"
    param = f"{node}.inputs.{key}" if name is None and key else name
    code = str(error.get("type") or "invalid_workflow")
    return PromptError(400, f"The engine refuses the workflow: {message}"[:MESSAGE_CHARS], code, param)
