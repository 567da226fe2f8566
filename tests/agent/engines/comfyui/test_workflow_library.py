"""A directory's workflows are the models of a server, as far as it has their nodes."""

import json
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent.engines.comfyui.workflow_library import CHECKED_S, WorkflowLibrary, WorkflowLister
from agent.engines.http.engine_client import SmallResponse
from agent.engines.http.probe import NoModelList
from shared.protocol.messages import DeploymentStatus
from shared.protocol.work import WorkScale
from tests.support.clock import ManualClock

SAVE = {"9": {"class_type": "SaveImage", "inputs": {}}}


def write(directory: Path, name: str, said: Any) -> None:
    (directory / f"{name}.json").write_text(said if isinstance(said, str) else json.dumps(said))


class Server:
    """What a ComfyUI server answers."""

    def __init__(self) -> None:
        self.nodes = {"SaveImage"}
        self.stats: Any = {"system": {}}
        self.status = 200
        self.asked: list[str] = []

    async def ask(self, path: str) -> SmallResponse:
        self.asked.append(path)
        if path == "/system_stats":
            return SmallResponse(self.status, orjson.dumps(self.stats))
        if path == "/models/checkpoints":
            return SmallResponse(200, b'["dir/a.safetensors","b c.safetensors","painting"]')
        node = path.rpartition("/")[2]
        return SmallResponse(200, orjson.dumps({node: {}} if node in self.nodes else {}))


async def test_workflows_checkpoints_and_the_one_for_any_are_listed(tmp_path: Path) -> None:
    write(tmp_path, "painting", {"workflow": SAVE, "images": None})
    write(tmp_path, "lacking", {"1": {"class_type": "Custom"}, **SAVE})
    write(tmp_path, "broken", "{")
    server, clock = Server(), ManualClock()
    lister = WorkflowLister(server.ask, WorkflowLibrary(tmp_path), (), clock)
    found = {model.id: model for model in await lister()}
    assert set(found) == {"painting", "lacking", "broken", "comfyui", "dir/a.safetensors"}
    assert found["painting"].status is DeploymentStatus.LOADED
    assert found["lacking"].reason == "the server has no node Custom"
    assert found["broken"].status is DeploymentStatus.FAILED
    assert all(model.routes[0] == "workflows" for model in found.values())


async def test_a_workflow_says_what_it_makes_and_how_much_work_that_is(tmp_path: Path) -> None:
    sampler = {"class_type": "SaveImage", "inputs": {"steps": 30, "text": ""}}
    inputs = {
        "steps": {"path": "1.inputs.steps", "type": "integer"},
        "prompt": {"path": "1.inputs.text", "type": "string"},
    }
    write(tmp_path, "painting", {"workflow": {"1": sampler}, "inputs": inputs})
    lister = WorkflowLister(Server().ask, WorkflowLibrary(tmp_path), ("painting",), ManualClock())
    for _ in range(2):
        (model,) = await lister()
        assert model.capabilities == ("text-to-image",)
        assert model.work == WorkScale(30.0, {"steps": 30.0})


async def test_only_what_is_named_is_offered_where_something_is(tmp_path: Path) -> None:
    write(tmp_path, "painting", {"workflow": SAVE})
    library = WorkflowLibrary(tmp_path)
    lister = WorkflowLister(Server().ask, library, ("painting",), ManualClock(), own="studio")
    assert [model.id for model in await lister()] == ["painting"]
    lister = WorkflowLister(Server().ask, library, (), ManualClock(), own="studio")
    assert "studio" in [model.id for model in await lister()]


async def test_the_server_is_asked_for_nodes_once_a_minute(tmp_path: Path) -> None:
    write(tmp_path, "lacking", {"1": {"class_type": "Custom"}, **SAVE})
    server, clock = Server(), ManualClock()
    lister = WorkflowLister(server.ask, WorkflowLibrary(tmp_path), ("lacking",), clock)
    assert [model.status for model in await lister()] == [DeploymentStatus.FAILED]
    server.nodes.add("Custom")
    server.asked.clear()
    assert [model.status for model in await lister()] == [DeploymentStatus.FAILED]
    assert server.asked == ["/system_stats"]
    clock.advance(CHECKED_S)
    assert [model.status for model in await lister()] == [DeploymentStatus.LOADED]


async def test_what_is_no_comfyui_is_told(tmp_path: Path) -> None:
    server = Server()
    server.stats = []
    lister = WorkflowLister(server.ask, WorkflowLibrary(None), (), ManualClock())
    with pytest.raises(NoModelList, match="no ComfyUI"):
        await lister()


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    write(tmp_path, "w", {"workflow": SAVE})
    library = WorkflowLibrary(tmp_path)
    library.look()
    first = library.workflows["w"]
    library.look()
    assert library.workflows["w"] is first
    write(tmp_path, "w", {"workflow": SAVE, "inputs": {"a": {"path": "9.inputs.a", "type": "string"}}})
    os.utime(tmp_path / "w.json", ns=(1, 1))
    library.look()
    assert list(library.workflows["w"].inputs) == ["a"]
    (tmp_path / "w.json").unlink()
    library.look()
    assert library.workflows == {}
