"""The workflows of a directory, and what of them, and beside them, a ComfyUI server can run."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import quote

import structlog

from agent.engines.backend import BackendError
from agent.engines.comfyui.workflow_facts import WorkflowFacts, facts_of
from agent.engines.comfyui.workflows import WORKFLOW_BYTES, Workflow, WorkflowMistake, read_workflow
from agent.engines.http.engine_client import SmallResponse
from agent.engines.http.models import MODELS, EngineModel
from agent.engines.http.probe import NoModelList
from agent.engines.model_names import is_nameable, why_not_nameable
from shared.protocol.messages import DeploymentStatus
from shared.protocol.routes import Route

log = structlog.get_logger("agent.engine")

ANY_WORKFLOW = "comfyui"
"""The model whose requests bring their workflow with them."""

CHECKED_S = 60.0
"""What the server has of nodes and checkpoints is asked for so often; that changes when it is restarted."""

_STATS = "/system_stats"

Question = Callable[[str], Awaitable[SmallResponse]]


class WorkflowLibrary:
    """Reads ``*.json`` of a directory, each again when it has changed."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._read: dict[Path, tuple[tuple[int, int], Workflow | str]] = {}
        self.workflows: Mapping[str, Workflow] = {}
        self._facts: dict[str, tuple[Workflow, WorkflowFacts]] = {}
        self.mistakes: Mapping[str, str] = {}
        """Name of a file that is no workflow → why."""

    def look(self) -> None:
        """Read what is new. May block: not for the event loop. Raises OSError for a directory that cannot be
        read."""
        if self._directory is None:
            return
        found = {path: self._one(path) for path in sorted(self._directory.glob("*.json"))[:MODELS]}
        self._read = found
        said = {path.stem: each for path, (_, each) in found.items()}
        self.workflows = {name: each for name, each in said.items() if isinstance(each, Workflow)}
        self._facts = {name: (each, self._of(name, each)) for name, each in self.workflows.items()}
        self.mistakes = {name: each for name, each in said.items() if isinstance(each, str)}

    def facts(self, name: str) -> WorkflowFacts:
        """What the workflow ``name`` says of itself."""
        return self._facts[name][1]

    def _of(self, name: str, workflow: Workflow) -> WorkflowFacts:
        before = self._facts.get(name)
        return before[1] if before is not None and before[0] is workflow else facts_of(workflow)

    def _one(self, path: Path) -> tuple[tuple[int, int], Workflow | str]:
        try:
            facts = path.stat()
            version = facts.st_mtime_ns, facts.st_size
            before = self._read.get(path)
            if before is not None and before[0] == version:
                return before
            if facts.st_size > WORKFLOW_BYTES:
                return version, f"{path.name} is longer than {WORKFLOW_BYTES} bytes"
            return version, read_workflow(path.stem, path.read_bytes())
        except OSError as error:
            return (0, 0), f"{path.name} cannot be read: {error.strerror}"
        except WorkflowMistake as mistake:
            return version, f"{path.name}: {mistake}"


class WorkflowLister:
    """Lists the models of the server that ``ask`` reaches: workflows, checkpoints, and the one for workflows
    that requests bring with them. ``clock`` is monotonic, in seconds."""

    def __init__(
        self,
        ask: Question,
        library: WorkflowLibrary,
        wanted: tuple[str, ...],
        clock: Callable[[], float],
        own: str = "",
    ) -> None:
        """``own`` is the model at which clients reach the server's own paths."""
        self._own = own
        self._ask = ask
        self._library = library
        self._wanted = wanted
        self._clock = clock
        self._checked_s = float("-inf")
        self._nodes: dict[str, bool] = {}
        """Class of nodes → whether the server has it."""
        self._checkpoints: tuple[str, ...] = ()
        self._left_out: set[str] = set()

    async def __call__(self) -> tuple[EngineModel, ...]:
        """Raises :class:`BackendError` for a server that cannot tell, or is no ComfyUI."""
        try:
            answer = await self._ask(_STATS)
        except BackendError:
            self._checked_s = float("-inf")
            raise
        said = answer.json() if answer.status == 200 else None
        if not isinstance(said, dict) or "system" not in said:
            raise NoModelList(answer, why=f"the server is no ComfyUI ({_STATS} answers {answer.status})")
        try:
            await asyncio.to_thread(self._library.look)
        except OSError as error:
            raise BackendError(f"the directory of workflows cannot be read: {error.strerror}") from None
        if self._clock() - self._checked_s >= CHECKED_S:
            self._nodes.clear()
            self._checkpoints = await self._find_checkpoints()
            self._checked_s = self._clock()
        models = [await self._of_workflow(each) for each in self._library.workflows.values()]
        models += [
            EngineModel(name, status=DeploymentStatus.FAILED, reason=why, routes=(Route.WORKFLOWS.value,))
            for name, why in self._library.mistakes.items()
        ]
        taken = {model.id for model in models}
        models += [
            EngineModel(name, routes=(Route.WORKFLOWS.value,))
            for name in dict.fromkeys((ANY_WORKFLOW, self._own, *self._checkpoints))
            if name and name not in taken
        ]
        return tuple(model for model in models if self._offers(model.id))[:MODELS]

    def _offers(self, name: str) -> bool:
        if self._wanted and name not in self._wanted:
            return False
        if not is_nameable(name) and name not in self._left_out:
            self._left_out.add(name)
            log.warning("model left out", model=ascii(name[:80]), reason=why_not_nameable(name))
        return is_nameable(name)

    async def _of_workflow(self, workflow: Workflow) -> EngineModel:
        missing = [each for each in sorted(workflow.classes) if not await self._has(each)]
        routes = [Route.WORKFLOWS.value]
        routes += [Route.IMAGES.value] if workflow.images is not None else []
        routes += [Route.VIDEOS.value] if workflow.videos is not None else []
        if missing:
            why, failed = f"the server has no node {', '.join(missing[:5])}", DeploymentStatus.FAILED
            return EngineModel(workflow.name, status=failed, reason=why, routes=tuple(routes))
        facts = self._library.facts(workflow.name)
        return EngineModel(workflow.name, routes=tuple(routes), capabilities=facts.tasks, work=facts.scale)

    async def _has(self, node: str) -> bool:
        if node not in self._nodes:
            answer = await self._ask(f"/object_info/{quote(node, safe='')}")
            self._nodes[node] = answer.status != 200 or answer.is_too_much or bool(answer.json())
        return self._nodes[node]

    async def _find_checkpoints(self) -> tuple[str, ...]:
        """Those in the server's directory; none where an older server does not tell."""
        answer = await self._ask("/models/checkpoints")
        listed = answer.json() if answer.status == 200 else None
        return tuple(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else ()
