"""An engine as a prober asks it, without a socket."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from agent.engines.backend import BackendError
from agent.engines.http.engine_client import SmallResponse
from agent.engines.http.probe import EngineView, Prober
from agent.engines.settings import EngineSettings


@dataclass
class FakeEngine:
    """Answers by path: a document, bytes, a status, or an error to raise. Other paths are 404."""

    answers: dict[str, Any]
    asked: list[str] = field(default_factory=list)

    async def ask(self, path: str, method: str = "GET", body: bytes = b"") -> SmallResponse:
        self.asked.append(path)
        answer = self.answers.get(path, 404)
        if callable(answer):
            answer = answer(method, body)
        if isinstance(answer, BackendError):
            raise answer
        if isinstance(answer, int):
            return SmallResponse(answer, b"")
        if isinstance(answer, tuple):
            return SmallResponse(answer[0], answer[1])
        return SmallResponse(200, answer if isinstance(answer, bytes) else orjson.dumps(answer))


async def look(answers: Mapping[str, Any], before: EngineView | None = None, **settings: Any) -> EngineView:
    prober = Prober(EngineSettings(url="http://e", name="e", **settings), FakeEngine(dict(answers)).ask)
    return await prober.look(before or EngineView())
