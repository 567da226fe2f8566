"""The nodes of the stand-in for ComfyUI, and how ComfyUI checks a prompt (``validate_prompt``).

EmptyImage, ImageScale, LoadImage, SaveImage and PreviewImage are called as ComfyUI's own and do what a test
needs of them. ``Steps`` works in steps, with previews if it is told to; the others do what their names say.
"""

import asyncio
import io
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

_numbers = itertools.count(1)

_Ui = dict[str, Any] | None
_Result = tuple[Any, _Ui]


class NodeFailed(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class NodeRun:
    directory: Path
    inputs: Mapping[str, Any]
    step: Callable[[int, int], Awaitable[None]]
    preview: Callable[[bytes], Awaitable[None]]
    flood: Callable[[int], Awaitable[None]]


async def _empty_image(run: NodeRun) -> _Result:
    color = int(run.inputs.get("color", 0))
    size = int(run.inputs["width"]), int(run.inputs["height"])
    rgb = (color >> 16 & 255, color >> 8 & 255, color & 255)
    return [Image.new("RGB", size, rgb) for _ in range(int(run.inputs["batch_size"]))], None


async def _image_scale(run: NodeRun) -> _Result:
    return run.inputs["image"], None


async def _load_image(run: NodeRun) -> _Result:
    return [Image.open(annotated(run.directory, run.inputs["image"])).convert("RGB")], None


async def _save_image(run: NodeRun) -> _Result:
    return None, {"images": [_saved(run, image, "output") for image in run.inputs["images"]]}


async def _preview_image(run: NodeRun) -> _Result:
    return None, {"images": [_saved(run, image, "temp") for image in run.inputs["images"]]}


def _saved(run: NodeRun, image: Image.Image, kind: str) -> dict[str, str]:
    name = f"{run.inputs.get('filename_prefix', 'ComfyUI')}_{next(_numbers):05}_.png"
    image.save(run.directory / kind / name)
    return {"filename": name, "subfolder": "", "type": kind}


async def _steps(run: NodeRun) -> _Result:
    most = int(run.inputs["steps"])
    written = io.BytesIO()
    Image.new("RGB", (16, 16)).save(written, "JPEG")
    for value in range(most):
        await run.step(value, most)
        if run.inputs.get("previews"):
            await run.preview(written.getvalue())
        await asyncio.sleep(float(run.inputs["step_s"]))
    await run.step(most, most)
    return run.inputs["image"], None


async def _fails(run: NodeRun) -> _Result:
    raise NodeFailed("RuntimeError", "this node always fails")


async def _floods(run: NodeRun) -> _Result:
    await run.flood(int(run.inputs["count"]))
    return run.inputs["image"], None


async def _save_large(run: NodeRun) -> _Result:
    name = f"large_{next(_numbers):05}_.mp4"
    with (run.directory / "output" / name).open("wb") as file:
        file.truncate(int(run.inputs["size_bytes"]))
    return None, {"images": [{"filename": name, "subfolder": "", "type": "output"}], "animated": [True]}


@dataclass(frozen=True)
class Node:
    function: Callable[[NodeRun], Awaitable[_Result]]
    required: Mapping[str, tuple[Any, ...]]
    is_output: bool = False

    def info(self, name: str) -> dict[str, Any]:
        return {"input": {"required": self.required}, "output_node": self.is_output, "name": name}


_SIZE = ("INT", {"default": 512, "min": 1, "max": 16384})
_IMAGE = ("IMAGE",)
NODES: Mapping[str, Node] = {
    "EmptyImage": Node(
        _empty_image,
        {"width": _SIZE, "height": _SIZE, "batch_size": ("INT", {"min": 1, "max": 4096}), "color": ("INT",)},
    ),
    "ImageScale": Node(
        _image_scale,
        {
            "image": _IMAGE,
            "upscale_method": (["nearest-exact", "bilinear", "area", "bicubic", "lanczos"],),
            "width": ("INT", {"min": 0, "max": 16384}),
            "height": ("INT", {"min": 0, "max": 16384}),
            "crop": (["disabled", "center"],),
        },
    ),
    "LoadImage": Node(_load_image, {"image": ("STRING",)}),
    "SaveImage": Node(_save_image, {"images": _IMAGE, "filename_prefix": ("STRING",)}, is_output=True),
    "PreviewImage": Node(_preview_image, {"images": _IMAGE}, is_output=True),
    "Steps": Node(_steps, {"image": _IMAGE, "steps": ("INT", {"min": 1}), "step_s": ("FLOAT",)}),
    "Fails": Node(_fails, {"image": _IMAGE}),
    "Floods": Node(_floods, {"image": _IMAGE, "count": ("INT",)}),
    "SaveLarge": Node(_save_large, {"images": _IMAGE, "size_bytes": ("INT",)}, is_output=True),
}


def annotated(directory: Path, name: str) -> Path:
    """The file that ``name [temp]`` means."""
    bare, _, kind = name.rpartition(" [")
    return directory / (kind.rstrip("]") or "input") / bare if bare else directory / "input" / name


def check_prompt(prompt: Any, directory: Path) -> tuple[dict[str, Any] | None, dict[str, Any], list[str]]:
    """The error, if all of it is refused, those of nodes, and the nodes that write outputs."""
    for node_id, node in prompt.items():
        if node.get("class_type") not in NODES:
            words = f"Cannot execute because node {node.get('class_type')} does not exist."
            return _error("invalid_prompt", words, f"Node ID '#{node_id}'"), {}, []
    outputs = [node_id for node_id, node in prompt.items() if NODES[node["class_type"]].is_output]
    if not outputs:
        return _error("prompt_no_outputs", "Prompt has no outputs", ""), {}, []
    node_errors = {
        node_id: {"errors": errors, "dependent_outputs": outputs, "class_type": node["class_type"]}
        for node_id, node in prompt.items()
        if (errors := _node_errors(node, directory))
    }
    if node_errors:
        words = "Prompt outputs failed validation"
        return _error("prompt_outputs_failed_validation", words, ""), node_errors, []
    return None, {}, outputs


def _node_errors(node: Mapping[str, Any], directory: Path) -> list[dict[str, Any]]:
    inputs, found = node.get("inputs", {}), []
    for name, (kind, *rest) in NODES[node["class_type"]].required.items():
        if name not in inputs:
            found.append(_error("required_input_missing", "Required input is missing", name, name))
            continue
        value, bounds = inputs[name], rest[0] if rest else {}
        if isinstance(value, list):
            continue
        if kind in ("INT", "FLOAT"):
            try:
                value = inputs[name] = int(value) if kind == "INT" else float(value)
            except (TypeError, ValueError) as error:
                words = f"Failed to convert an input value to a {kind} value"
                found.append(_error("invalid_input_type", words, f"{name}, {value}, {error}", name))
                continue
            if "max" in bounds and value > bounds["max"]:
                words = f"Value {value} bigger than max of {bounds['max']}"
                found.append(_error("value_bigger_than_max", words, name, name))
        elif isinstance(kind, list) and value not in kind:
            found.append(
                _error("value_not_in_list", "Value not in list", f"{name}: '{value}' not in {kind}", name)
            )
        elif node["class_type"] == "LoadImage" and not annotated(directory, value).is_file():
            words = "Custom validation failed for node"
            found.append(
                _error("custom_validation_failed", words, f"{name} - Invalid image file: {value}", name)
            )
    return found


def _error(kind: str, message: str, details: str, name: str = "") -> dict[str, Any]:
    extra = {"input_name": name} if name else {}
    return {"type": kind, "message": message, "details": details, "extra_info": extra}
