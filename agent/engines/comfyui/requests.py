"""What clients ask of workflows: the bodies of requests, and what each wants for an answer. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import orjson
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from agent.engines.comfyui.workflows import (
    DeclaredInput,
    FileInput,
    InputMistake,
    Prompt,
    Workflow,
    WorkflowMistake,
    bind,
    check_prompt,
)

FORM_PARTS = 256

_IGNORED = frozenset(("model", "user", "moderation", "safety_identifier", "stream", "response_format"))
_AS_USUAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "size": ("auto",),
    "quality": ("auto", "standard"),
    "style": ("vivid",),
    "background": ("auto",),
    "output_format": ("png",),
    "output_compression": (100,),
    "partial_images": (0,),
}
"""OpenAI's members that need no input of the workflow while they say what is usual."""


_INTEGERS = range(-(2**63), 2**64)
"""Those that JSON is read and written with here."""


class AnswerForm(Enum):
    """What the answer to a prompt looks like."""

    FILES = auto()
    """The bytes of the one file there is; of several, JSON with all of them."""
    JSON = auto()
    EVENTS = auto()
    """The same JSON as one server-sent event."""
    IMAGES = auto()
    """OpenAI's JSON of images."""
    IMAGE_EVENTS = auto()
    """OpenAI's events of images."""
    PROMPT = auto()
    """ComfyUI's own answer to ``POST /prompt``."""


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """A prompt that is to be run. ``outputs`` names the nodes whose files are wanted; empty: all."""

    prompt: Prompt
    form: AnswerForm
    files: tuple[FileInput, ...] = ()
    outputs: tuple[str, ...] = ()
    workflow: Workflow | None = None
    client_id: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further members of ``POST /prompt``."""


def read_asked(
    path: str, workflow: Workflow | None, content_type: str, accept: str, body: bytes
) -> AskedPrompt:
    """What a request for ``path`` asks for. Raises :class:`InputMistake`."""
    if path.endswith("/prompt"):
        return _read_prompt(body)
    members = _members(content_type, body)
    if path == "/v1/images/generations" or path == "/v1/images/edits":
        return _read_images(_declared(workflow), members, edits=path.endswith("edits"))
    if path == "/v1/videos":
        return _read_video(_declared(workflow), members)
    return _read_workflow(workflow, members, accept, is_form=_is_form(content_type))


def _declared(workflow: Workflow | None) -> Workflow:
    if workflow is None:
        raise InputMistake("This model has no declared workflow.", "model", "no_workflow")
    return workflow


def _read_workflow(
    workflow: Workflow | None, members: dict[str, Any], accept: str, *, is_form: bool
) -> AskedPrompt:
    """``POST /v1/workflows/{name}``. A form's fields are the inputs themselves."""
    form = AnswerForm.FILES
    if "text/event-stream" in accept:
        form = AnswerForm.EVENTS
    elif accept.strip().startswith("application/json"):
        form = AnswerForm.JSON
    if workflow is None:
        unknown = members.keys() - {"workflow"}
        if "workflow" not in members or unknown:
            raise InputMistake(
                "Send the workflow in ComfyUI's API format as 'workflow', and nothing else.", "workflow"
            )
        return AskedPrompt(_checked(members["workflow"]), form)
    if is_form:
        inputs: Any = _typed(workflow.inputs, members)
    else:
        if other := next((name[:64] for name in members if name != "inputs"), None):
            message = f"Unknown member '{other}': send {{\"inputs\": {{…}}}}."
            raise InputMistake(message, other, "unknown_member")
        inputs = members.get("inputs", {})
        if not isinstance(inputs, dict):
            raise InputMistake("'inputs' must be an object.", "inputs", "invalid_type")
    prompt, files = bind(workflow, inputs)
    return AskedPrompt(prompt, form, files, workflow.outputs, workflow)


def _checked(value: object) -> Prompt:
    try:
        return check_prompt(value)
    except WorkflowMistake as mistake:
        raise InputMistake(f"'workflow': {mistake}.", "workflow") from None


def _read_images(workflow: Workflow, members: dict[str, Any], *, edits: bool) -> AskedPrompt:
    bindings = workflow.images
    if bindings is None or (edits and bindings.image is None):
        raise InputMistake(f"The workflow '{workflow.name}' declares no images.", "model", "not_declared")
    if members.get("response_format") not in (None, "b64_json"):
        raise InputMistake("Images come as b64_json only.", "response_format", "unsupported_value")
    bound = {"prompt": bindings.prompt}
    if bindings.n is not None:
        bound["n"] = bindings.n
    if bindings.image is not None:
        bound["image"] = bindings.image
    prompt, files = bind(workflow, _inputs(workflow, members, bound, bindings.size), at="")
    form = AnswerForm.IMAGE_EVENTS if members.get("stream") in (True, "true") else AnswerForm.IMAGES
    return AskedPrompt(prompt, form, files, workflow.outputs, workflow)


def _read_video(workflow: Workflow, members: dict[str, Any]) -> AskedPrompt:
    bindings = workflow.videos
    if bindings is None:
        raise InputMistake(f"The workflow '{workflow.name}' declares no videos.", "model", "not_declared")
    bound = {"prompt": bindings.prompt}
    if bindings.seconds is not None:
        bound["seconds"] = bindings.seconds
    if bindings.input_reference is not None:
        bound["input_reference"] = bindings.input_reference
    prompt, files = bind(workflow, _inputs(workflow, members, bound, bindings.size), at="")
    return AskedPrompt(prompt, AnswerForm.FILES, files, workflow.outputs, workflow)


def _inputs(
    workflow: Workflow, members: Mapping[str, Any], bound: Mapping[str, str], size: tuple[str, str] | None
) -> dict[str, Any]:
    """The inputs that OpenAI's members stand for. A member that is called as an input is that input."""
    inputs: dict[str, Any] = {}
    for name, value in members.items():
        if value is None or value == "":
            continue
        if name in bound:
            inputs |= _typed(workflow.inputs, {bound[name]: value})
        elif name == "size" and size is not None and value != "auto":
            inputs |= dict(zip(size, _size(value), strict=True))
        elif name in workflow.inputs:
            inputs |= _typed(workflow.inputs, {name: value})
        elif name not in _IGNORED and value not in _AS_USUAL.get(name, ()):
            message = f"The workflow '{workflow.name}' has nothing that '{name[:64]}' could set."
            raise InputMistake(message, name[:64], "unsupported_parameter")
    return inputs


def _size(value: object) -> tuple[int, int]:
    width, _, height = value.partition("x") if isinstance(value, str) else ("", "", "")
    if not (width.isdecimal() and height.isdecimal() and len(width) < 6 and len(height) < 6):
        raise InputMistake("'size' must be WIDTHxHEIGHT, such as 1024x1024.", "size")
    return int(width), int(height)


def _read_prompt(body: bytes) -> AskedPrompt:
    """ComfyUI's own ``POST /prompt``. Its ``prompt_id`` is not taken: it is the agent's."""
    members = _json(body)
    kept: tuple[str, ...] = ("extra_data", "partial_execution_targets")
    extra = {name: members[name] for name in kept if name in members}
    if not isinstance(extra.get("extra_data", {}), dict):
        raise InputMistake("'extra_data' must be an object.", "extra_data", "invalid_type")
    try:
        prompt = check_prompt(members.get("prompt"))
    except WorkflowMistake as mistake:
        raise InputMistake(f"'prompt': {mistake}.", "prompt") from None
    client_id = members.get("client_id")
    return AskedPrompt(
        prompt, AnswerForm.PROMPT, client_id=client_id if isinstance(client_id, str) else "", extra=extra
    )


def _members(content_type: str, body: bytes) -> dict[str, Any]:
    return _form(content_type, body) if _is_form(content_type) else _json(body)


def _is_form(content_type: str) -> bool:
    return content_type.strip().lower().startswith("multipart/form-data")


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise InputMistake("The body is no JSON.", "", "invalid_json") from None
    if not isinstance(value, dict):
        raise InputMistake("The body must be a JSON object.", "", "invalid_type")
    return value


def _typed(declared: Mapping[str, DeclaredInput], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A form's fields are texts: those of numbers are read as such. What cannot be, or is no number of JSON,
    is left to be refused."""
    return {name: _as_type(declared.get(name), value) for name, value in fields.items()}


def _as_type(declared: DeclaredInput | None, value: Any) -> Any:
    if declared is None or not isinstance(value, str):
        return value
    if declared.type == "boolean" and value in ("true", "false"):
        return value == "true"
    try:
        if declared.type == "integer":
            return number if (number := int(value)) in _INTEGERS else value
        if declared.type == "number":
            return found if math.isfinite(found := float(value)) else value
    except ValueError:
        pass
    return value


def _form(content_type: str, body: bytes) -> dict[str, Any]:
    """The fields of a form: texts, and the bytes of files."""
    _, options = parse_options_header(content_type.encode("latin-1"))
    reader = _FormReader()
    try:
        parser = MultipartParser(options.get(b"boundary", b""), reader.callbacks())  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise InputMistake("The form cannot be read.", "", "invalid_form") from None
    if not reader.complete:
        raise InputMistake("The form ends too early.", "", "invalid_form")
    return reader.found


class _FormReader:
    """Collects the parts of a form."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.complete = False
        self._field, self._value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._data = bytearray()
        self._parts = 0

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header_ends,
            "on_part_data": lambda data, start, end: self._data.extend(data[start:end]),
            "on_part_end": self._end,
            "on_end": self._all,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > FORM_PARTS:
            raise InputMistake(f"The form has more than {FORM_PARTS} parts.", "", "invalid_form")
        self._headers, self._data = {}, bytearray()

    def _header_ends(self) -> None:
        self._headers[bytes(self._field).lower()] = bytes(self._value)
        self._field, self._value = bytearray(), bytearray()

    def _end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            self.found[name] = bytes(self._data)
        else:
            self.found[name] = self._data.decode("utf-8", "replace")

    def _all(self) -> None:
        self.complete = True
