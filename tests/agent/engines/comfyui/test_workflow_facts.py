"""What a workflow's nodes and declarations say of it."""

from typing import Any

import orjson
import pytest

from agent.engines.comfyui.workflow_facts import facts_of
from agent.engines.comfyui.workflows import Workflow, read_workflow
from shared.protocol.work import WorkScale

LATENT = {"class_type": "EmptyLatentImage", "inputs": {"width": 1000, "height": 500, "batch_size": 2}}
SAMPLER = {"class_type": "KSampler", "inputs": {"steps": 20, "seed": 7, "latent_image": ["1", 0]}}
PROMPT = {"class_type": "CLIPTextEncode", "inputs": {"text": "a lighthouse"}}
SAVE = {"class_type": "SaveImage", "inputs": {"images": ["2", 0]}}
TEXT = {"path": "3.inputs.text", "type": "string"}
STEPS = {"path": "2.inputs.steps", "type": "integer"}
WIDTH, HEIGHT, BATCH = (
    {"path": f"1.inputs.{name}", "type": "integer"} for name in ("width", "height", "batch_size")
)


def workflow(save: Any = SAVE, **more: Any) -> Workflow:
    said = {"workflow": {"1": LATENT, "2": SAMPLER, "3": PROMPT, "9": save}, **more}
    return read_workflow("w", orjson.dumps(said))


@pytest.mark.parametrize(
    ("save", "kinds", "tasks"),
    [
        ("SaveImage", ("string",), ("text-to-image",)),
        ("PreviewImage", ("string", "integer"), ("text-to-image",)),
        ("SaveVideo", ("string", "image"), ("image-to-video",)),
        ("SaveAnimatedWEBP", ("string",), ("text-to-video",)),
        ("VHS_VideoCombine", ("video",), ("video-to-video",)),
        ("SaveAudioMP3", ("string",), ("text-to-audio",)),
        ("SaveImage", ("image", "video"), ("image-to-image", "video-to-image")),
        ("SaveImage", ("integer",), ()),
        ("SaveLatent", ("string",), ()),
    ],
)
def test_a_workflow_makes_what_its_last_nodes_save(
    save: str, kinds: tuple[str, ...], tasks: tuple[str, ...]
) -> None:
    inputs = {kind: {"path": "3.inputs.text", "type": kind} for kind in kinds}
    assert facts_of(workflow({"class_type": save, "inputs": {}}, inputs=inputs)).tasks == tasks


def test_of_several_nodes_that_save_those_count_that_are_declared() -> None:
    both = workflow(inputs={"prompt": TEXT}, outputs=["9"])
    both.prompt["8"] = {"class_type": "SaveAudio", "inputs": {}}
    assert facts_of(both).tasks == ("text-to-image",)


def test_work_is_steps_by_pixels_by_pictures() -> None:
    inputs = {"steps": STEPS, "width": WIDTH, "height": HEIGHT, "count": BATCH, "prompt": TEXT}
    usual = {"steps": 20.0, "width": 1000.0, "height": 500.0, "count": 2.0}
    assert facts_of(workflow(inputs=inputs)).scale == WorkScale(20.0, usual)


def test_members_of_openais_requests_count_as_the_inputs_that_they_set() -> None:
    inputs = {"w": WIDTH, "h": HEIGHT, "count": BATCH, "prompt": TEXT}
    images = {"prompt": "prompt", "size": ["w", "h"], "n": "count"}
    found = facts_of(workflow(inputs=inputs, images=images)).scale
    assert found is not None
    assert found.inputs == {"w": 1000.0, "h": 500.0, "count": 2.0, "size": 500_000.0, "n": 2.0}
    assert found.units_of({"size": 2_000_000.0, "n": 1.0}) == pytest.approx(found.units * 2)
    videos = {"prompt": "prompt", "seconds": "count"}
    found = facts_of(workflow(inputs=inputs, videos=videos)).scale
    assert found is not None
    assert found.inputs["seconds"] == 2.0


def test_nodes_that_say_nothing_of_work_make_no_scale() -> None:
    bare = read_workflow("w", orjson.dumps({"workflow": {"9": SAVE}}))
    assert facts_of(bare).scale is None
