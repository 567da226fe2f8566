"""What a workflow's nodes and declarations say of it: what it makes, and how much work that is. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from agent.engines.comfyui.workflows import ImageBindings, Prompt, VideoBindings, Workflow
from shared.process.frozen import frozen
from shared.protocol.work import BATCH, FRAMES, STEPS, WORK_INPUTS, WorkScale, positive, units_of_nodes

PROPORTIONAL = frozenset((*STEPS, *BATCH, *FRAMES, "width", "height"))
"""Inputs of nodes that the work is proportional to."""

_INPUTS = ".inputs."
_MADE = (
    ("video", re.compile(r"Video|WEBM|AnimatedWEBP|AnimatedPNG")),
    ("audio", re.compile(r"Audio")),
    ("image", re.compile(r"Image")),
)
"""What a node gives whose class is called so; the first that fits."""

_GIVES = re.compile(r"Save|Preview|VideoCombine")
"""Classes of nodes whose files are an answer."""


@frozen
class WorkflowFacts:
    """``tasks`` are in the words of Hugging Face: ``text-to-image``, ``image-to-video``, … ``scale`` None:
    its nodes do not say how much work it is."""

    tasks: tuple[str, ...] = ()
    scale: WorkScale | None = None


def facts_of(workflow: Workflow) -> WorkflowFacts:
    """What ``workflow`` says of itself."""
    return WorkflowFacts(tuple(dict.fromkeys(_tasks(workflow))), _scale(workflow))


def _tasks(workflow: Workflow) -> Iterable[str]:
    nodes = workflow.prompt
    outputs = workflow.outputs or [node for node in nodes if _GIVES.search(nodes[node]["class_type"])]
    made = [_made(nodes[node]["class_type"]) for node in outputs]
    given = {declared.type for declared in workflow.inputs.values()}
    sources: list[str] = [kind for kind in ("image", "video", "audio") if kind in given]
    sources = sources or (["text"] if "string" in given else [])
    return (f"{source}-to-{kind}" for source in sources for kind in made if kind)


def _made(class_type: str) -> str:
    return next((kind for kind, words in _MADE if words.search(class_type)), "")


def _scale(workflow: Workflow) -> WorkScale | None:
    units = units_of_nodes(workflow.prompt.values())
    if units is None:
        return None
    usual: dict[str, float] = {}
    for name, declared in workflow.inputs.items():
        if (value := _usual(workflow.prompt, declared.path)) is not None:
            usual[name] = value
    if workflow.images is not None:
        usual = _bound(usual, workflow.images, "n", workflow.images.n) | usual
    if workflow.videos is not None:
        usual = _bound(usual, workflow.videos, "seconds", workflow.videos.seconds) | usual
    return WorkScale(units, dict(list(usual.items())[:WORK_INPUTS]))


def _usual(nodes: Prompt, places: Iterable[str]) -> float | None:
    """What a request has that does not set an input; None for one that the work is not proportional to."""
    for place in places:
        node, _, key = place.partition(_INPUTS)
        value: Any = nodes[node].get("inputs", {}).get(key)
        if key in PROPORTIONAL and (number := positive(value)) is not None:
            return number
    return None


def _bound(
    usual: Mapping[str, float], bindings: ImageBindings | VideoBindings, member: str, bound: str | None
) -> dict[str, float]:
    """The members of OpenAI's requests that set such inputs."""
    found = {} if bound is None or bound not in usual else {member: usual[bound]}
    if bindings.size is not None and all(name in usual for name in bindings.size):
        width, height = bindings.size
        found["size"] = usual[width] * usual[height]
    return found
