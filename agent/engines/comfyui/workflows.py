"""Workflows with declared inputs: what a workflow's file says, and how inputs are bound into it. Pure.

A file is JSON. ``workflow`` is what ComfyUI exports in its API format: node id → the node.
``inputs`` declares what a client may set and where each value goes (``6.inputs.text``), ``outputs`` names the
nodes whose files are the answer, and ``images`` and ``videos`` say how OpenAI's requests are bound.
"""

import base64
import binascii
import hashlib
import mimetypes
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

WORKFLOW_BYTES = 8 * 1024 * 1024
"""Longest file of a workflow that is read."""

SEED_BITS = 53
"""Of a random integer: what every reader of JSON takes as it is."""

_INPUTS = ".inputs."
_MEDIA = frozenset(("image", "video", "audio"))
_BEGINNINGS = (
    (b"\x89PNG\r\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)

Prompt = dict[str, dict[str, Any]]
"""Node id → the node, in ComfyUI's API format."""


class WorkflowMistake(ValueError):
    """A workflow's file does not say what it must."""


class InputMistake(Exception):
    """A client's input is not what the workflow declares. ``param`` and ``code`` are for its error."""

    def __init__(self, message: str, param: str, code: str = "invalid_input") -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Paths = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1, max_length=64)]


class DeclaredInput(BaseModel):
    """One input: its ``type`` and the places of its value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Paths
    """``6.inputs.text``, or several such."""
    type: Literal["string", "integer", "number", "boolean", "image", "video", "audio"]
    required: bool = False
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str | int | float, ...] | None = None
    random: bool = False
    """An integer that is chosen at random where the client gives none."""


class ImageBindings(BaseModel):
    """Which inputs OpenAI's members of a request for images set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str
    size: tuple[str, str] | None = None
    """The inputs for width and height."""
    n: str | None = None
    image: str | None = None


class VideoBindings(BaseModel):
    """Which inputs OpenAI's members of a request for a video set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str
    size: tuple[str, str] | None = None
    seconds: str | None = None
    input_reference: str | None = None


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    workflow: dict[str, dict[str, Any]] = Field(min_length=1)
    inputs: dict[str, DeclaredInput] = Field(default_factory=dict, max_length=256)
    outputs: tuple[str, ...] = ()
    images: ImageBindings | None = None
    videos: VideoBindings | None = None


@dataclass(frozen=True, slots=True)
class FileInput:
    """A file that a client sent, which is uploaded and named in each of ``places``."""

    places: tuple[tuple[str, str], ...]
    data: bytes
    name: str
    media_type: str


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow as its file says. ``prompt`` is not to be changed."""

    name: str
    prompt: Prompt
    inputs: Mapping[str, DeclaredInput]
    outputs: tuple[str, ...]
    images: ImageBindings | None = None
    videos: VideoBindings | None = None

    @property
    def classes(self) -> frozenset[str]:
        """The classes of its nodes."""
        return frozenset(node["class_type"] for node in self.prompt.values())

    def input_at(self, node: str, key: str) -> str | None:
        """The declared input whose value goes there."""
        place = f"{node}{_INPUTS}{key}"
        return next((name for name, each in self.inputs.items() if place in each.path), None)


def read_workflow(name: str, data: bytes) -> Workflow:
    """What the file of the workflow ``name`` says. Raises :class:`WorkflowMistake`."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise WorkflowMistake(f"it is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise WorkflowMistake("it is no object")
    if "nodes" in value and "links" in value:
        raise WorkflowMistake("it is saved for ComfyUI's editor: export it with 'Export (API)'")
    nodes = value.values()
    if "workflow" not in value and all(isinstance(node, dict) and "class_type" in node for node in nodes):
        value = {"workflow": value}
    try:
        said = _File.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise WorkflowMistake(f"{place}: {first['msg']}") from None
    prompt = check_prompt(said.workflow)
    _check_declarations(said, prompt)
    return Workflow(name, prompt, said.inputs, said.outputs, said.images, said.videos)


def check_prompt(value: object) -> Prompt:
    """``value``, if it is a prompt in ComfyUI's API format. Raises :class:`WorkflowMistake`."""
    if not isinstance(value, dict) or not value:
        raise WorkflowMistake("a workflow is an object of nodes, in ComfyUI's API format")
    for node_id, node in value.items():
        if not isinstance(node, dict) or not isinstance(node.get("class_type"), str):
            raise WorkflowMistake(f"node {node_id[:64]} has no class_type")
        if not isinstance(node.get("inputs", {}), dict):
            raise WorkflowMistake(f"the inputs of node {node_id[:64]} are no object")
    return value


def _check_declarations(said: _File, prompt: Prompt) -> None:
    for name, declared in said.inputs.items():
        for path in declared.path:
            _check_path(f"inputs.{name}.path", path, prompt)
        if declared.random and declared.type != "integer":
            raise WorkflowMistake(f"inputs.{name}.random: only an integer is chosen at random")
    for node in said.outputs:
        if node not in prompt:
            raise WorkflowMistake(f"outputs: the workflow has no node {node!r}")
    for kind, bindings in (("images", said.images), ("videos", said.videos)):
        for member, bound in _bound_names(bindings):
            if bound not in said.inputs:
                raise WorkflowMistake(f"{kind}.{member}: there is no input {bound!r}")


def _check_path(where: str, path: str, prompt: Prompt) -> None:
    node, _, key = path.partition(_INPUTS)
    if not key:
        raise WorkflowMistake(f"{where}: write NODE.inputs.NAME, not {path!r}")
    if node not in prompt:
        raise WorkflowMistake(f"{where}: the workflow has no node {node!r}")


def _bound_names(bindings: ImageBindings | VideoBindings | None) -> Iterator[tuple[str, str]]:
    for member, bound in bindings.model_dump().items() if bindings is not None else ():
        for name in bound if isinstance(bound, tuple) else (bound,):
            if name is not None:
                yield member, name


def bind(
    workflow: Workflow, given: Mapping[str, Any], at: str = "inputs."
) -> tuple[Prompt, tuple[FileInput, ...]]:
    """The prompt with the inputs that were ``given``, and the files among them. ``at`` stands before an
    input's name in errors. Raises :class:`InputMistake`."""
    prompt, files = dict(workflow.prompt), []
    for name in given:
        if name not in workflow.inputs:
            known = ", ".join(sorted(workflow.inputs)) or "none"
            message = f"The workflow '{workflow.name}' has no input '{name[:64]}'; its inputs are: {known}."
            raise InputMistake(message, at + name[:64], "unknown_input")
    for name, declared in workflow.inputs.items():
        if given.get(name) is None:
            if declared.required:
                raise InputMistake(f"The input '{at}{name}' is missing.", at + name, "missing_input")
            if not declared.random:
                continue
        value = given.get(name)
        value = random_integer(declared) if value is None else check_value(at + name, declared, value)
        places = tuple(_place(path) for path in declared.path)
        if isinstance(value, bytes):
            files.append(file_input(places, value))
        else:
            put(prompt, places, value)
    return prompt, tuple(files)


def put(prompt: Prompt, places: Sequence[tuple[str, str]], value: object) -> None:
    """Put ``value`` at ``places`` of ``prompt``. Nodes are replaced, as they may be a workflow's."""
    for node, key in places:
        before = prompt[node]
        prompt[node] = {**before, "inputs": {**before.get("inputs", {}), key: value}}


def file_input(places: Sequence[tuple[str, str]], data: bytes, media_type: str = "") -> FileInput:
    """``data`` to be uploaded. It is called by its content, so that ComfyUI knows equal inputs as equal."""
    known = media_type or next((kind for begin, kind in _BEGINNINGS if data.startswith(begin)), "")
    if not known and data[4:8] == b"ftyp":
        known = "video/mp4"
    ending = mimetypes.guess_extension(known) if known else None
    name = f"trunkline-{hashlib.sha256(data).hexdigest()[:32]}{ending or '.bin'}"
    return FileInput(tuple(places), data, name, known or "application/octet-stream")


def random_integer(declared: DeclaredInput) -> int:
    """Within the bounds of ``declared``."""
    low = 0 if declared.minimum is None else int(declared.minimum)
    high = 2**SEED_BITS - 1 if declared.maximum is None else min(int(declared.maximum), 2**SEED_BITS - 1)
    return low + secrets.randbelow(max(1, high - low + 1))


def check_value(param: str, declared: DeclaredInput, value: object) -> object:
    """``value``, if it is of the declared type and within its bounds; bytes for a file. Raises
    :class:`InputMistake`."""
    kind = declared.type
    if kind in _MEDIA:
        return _file_data(param, kind, value)
    types = _TYPES[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind != "boolean"):
        raise InputMistake(f"'{param}' must be {_ARTICLES[kind]}, not {_said(value)}.", param, "invalid_type")
    if declared.choices is not None and value not in declared.choices:
        listed = ", ".join(str(choice) for choice in declared.choices)
        raise InputMistake(f"'{param}' must be one of {listed}.", param)
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_bounds(param, declared, value)
    return value


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_ARTICLES = {"string": "a string", "integer": "an integer", "number": "a number", "boolean": "true or false"}


def _check_bounds(param: str, declared: DeclaredInput, value: float) -> None:
    low, high = declared.minimum, declared.maximum
    if (low is not None and value < low) or (high is not None and value > high):
        if low is not None and high is not None:
            wanted = f"from {low:g} to {high:g}"
        else:
            wanted = f"at least {low:g}" if low is not None else f"at most {high:g}"
        raise InputMistake(f"'{param}' must be {wanted}, not {value:g}.", param)


def _file_data(param: str, kind: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        message = f"'{param}' must be the {kind} in base64, or a data URL, not {_said(value)}."
        raise InputMistake(message, param, "invalid_type")
    text = value.partition(",")[2] if value.startswith("data:") else value
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not data:
        raise InputMistake(f"'{param}' is neither base64 nor a data URL with base64 in it.", param)
    return data


def _place(path: str) -> tuple[str, str]:
    node, _, key = path.partition(_INPUTS)
    return node, key


def _said(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "a file")
