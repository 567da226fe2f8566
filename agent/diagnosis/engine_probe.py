"""Asks an engine as the agent does, without an agent: its models, and one token."""

import json
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from agent.engines.http.model_servers import PING_PATH, read_status
from agent.engines.settings import base_url
from agent.engines.wire import PATH_CHARS
from shared.process.checks import CheckOutcome, CheckState, failed, passed, skipped
from shared.process.connection_errors import explain_http_error
from shared.process.excerpt import printable
from shared.protocol.messages import DeploymentStatus

LIST_S = 10.0
GENERATE_S = 120.0
MOST_BYTES = 4 * 1024 * 1024
HEALTH = {
    "openai": "/v1/models",
    "kserve": "/v2/health/ready",
    "comfyui": "/system_stats",
    "torchserve": PING_PATH,
}
"""Protocol → where such an engine says that it works."""
_MODELS = "/v1/models/"
"""Where TensorFlow Serving says this of a model, whose name follows."""

_TOKEN = {"max_tokens": 1, "temperature": 0}
_QUESTIONS: Sequence[tuple[str, Mapping[str, Any], str]] = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], **_TOKEN}, "choices"),
    ("/v1/completions", {"prompt": "Hello", **_TOKEN}, "choices"),
    ("/v1/embeddings", {"input": "Hello"}, "data"),
)
"""Path, body, and the member of an answer that is not empty; the next one where a model has not the route."""
_OTHER_ROUTE = (400, 404, 405, 422, 501)
_NO_ROUTE = frozenset((404, 405, 501))


class EngineSilent(Exception):
    """The engine did not answer in order. The message says why, as a sentence's end."""


@dataclass(frozen=True)
class EngineProbe:
    """One engine at a URL."""

    name: str
    url: str
    protocol: str = "openai"
    models: Sequence[str] = ()
    """Only these are offered; empty: all it lists."""
    health: str | None = None
    key: str | None = field(default=None, repr=False)
    generate_s: float = GENERATE_S

    def reachable(self) -> CheckOutcome:
        """Whether it answers, and lists models."""
        try:
            outcomes = [self._answers(path) for path in self._paths]
        except EngineSilent as error:
            return failed(
                f"The engine {self.name} at {self.url} does not answer: {error}.",
                "Start it, or correct its URL; look at its log.",
            )
        return next((each for each in outcomes if each.state is CheckState.FAILED), outcomes[0])

    @property
    def _paths(self) -> Sequence[str]:
        """Where it says that it works; TensorFlow Serving, at each of its models."""
        if self.protocol == "tensorflow":
            return [_MODELS + quote(model, safe="") for model in self.models]
        return [self.health or HEALTH[self.protocol]]

    def _answers(self, path: str) -> CheckOutcome:
        """What its answer at ``path`` says of it. Raises EngineSilent."""
        status, found = self._ask("GET", path, None, LIST_S)
        if status in (401, 403):
            return failed(
                f"The engine {self.name} refuses the agent's key (status {status}).",
                "Give its key as api_key, or in TRUNKLINE_AGENT_ENGINE_KEY.",
            )
        if self.protocol == "tensorflow" and status != 503:
            model = read_status(unquote(path.removeprefix(_MODELS)), status, found)
            if model.status is not DeploymentStatus.LOADED:
                return failed(
                    f"Model {printable(model.id)} of the engine {self.name} is {model.status}: "
                    f"{printable(model.reason)}.",
                    "Load it there, or correct its name in the settings.",
                )
        if status >= 400:
            return failed(
                f"The engine {self.name} answers {path} with status {status}.",
                "Status 503: it loads its model. Else it is no engine, or its protocol is another one.",
            )
        if self.protocol != "openai" or self.health is not None:
            return passed(f"The engine {self.name} answers at {self.url}.", engine=self.name)
        listed = _listed(found)
        if not listed:
            return failed(f"The engine {self.name} answers and lists no models.", "Load a model into it.")
        missing = [each for each in self.models if each not in listed]
        if missing:
            return failed(
                f"The engine {self.name} does not list {printable(', '.join(missing))}, which the "
                "settings name.",
                "Correct the names, or load these models into it.",
            )
        return passed(
            f"The engine {self.name} lists {printable(', '.join(listed[:5]))}.", models=listed[:100]
        )

    def lists_models(self) -> bool:
        """Whether it is an engine at all, as far as its list of models shows."""
        try:
            status, found = self._ask("GET", "/v1/models", None, LIST_S)
        except EngineSilent:
            return False
        return status in (401, 403, 503) or (isinstance(found, dict) and isinstance(found.get("data"), list))

    def generates(self) -> CheckOutcome:
        """Whether a model really computes something."""
        if self.protocol != "openai":
            return skipped(
                f"The engine {self.name} is no engine for text; real-request asks through the gateway."
            )
        try:
            listed = list(self.models) or _listed(self._ask("GET", "/v1/models", None, LIST_S)[1])
            if not listed:
                return skipped(f"The engine {self.name} lists no models.")
            return self._generates(listed[0])
        except EngineSilent as error:
            return failed(
                f"The engine {self.name} lists models and does not generate: {error}.",
                "Look at its log and its GPU's state; restart it. With hung_s and restart the agent does "
                "that.",
            )

    def _generates(self, model: str) -> CheckOutcome:
        said, statuses = "", set[int]()
        for path, body, member in _QUESTIONS:
            began_s = time.monotonic()
            status, found = self._ask("POST", path, {"model": model, **body}, self.generate_s)
            if status == 200:
                if not isinstance(found, dict) or not found.get(member):
                    raise EngineSilent(f"the answer of {path} is empty")
                took_ms = (time.monotonic() - began_s) * 1000
                return passed(
                    f"The engine {self.name} answers {path} for {printable(model)} in {took_ms:.0f} ms.",
                    model=model,
                    ms=round(took_ms, 1),
                )
            statuses.add(status)
            said = f"{path} is answered with status {status}{_reason(found)}"
            if status not in _OTHER_ROUTE:
                break
        if statuses <= _NO_ROUTE:
            return skipped(
                f"The engine {self.name} has no route for text ({said}); real-request asks the gateway."
            )
        raise EngineSilent(said)

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> tuple[int, Any]:
        """Status, and the JSON that was answered, None where it is none. Raises EngineSilent."""
        parts = urlsplit(base_url(self.url))
        headers = {"accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        connection: HTTPConnection | None = None
        try:
            connection = _connection(parts, timeout_s)
            sent = None if body is None else json.dumps(body)
            encoded = {name: value.encode() for name, value in headers.items()}
            connection.request(method, quote(parts.path + path, safe=PATH_CHARS), sent, encoded)
            response = connection.getresponse()
            text = response.read(MOST_BYTES)
        except TimeoutError as error:
            raise EngineSilent(f"nothing comes within {timeout_s:g} s") from error
        except (OSError, HTTPException, UnicodeError) as error:  # UnicodeError: of a host that is no name
            raise EngineSilent(explain_http_error(self.url, error)) from error
        finally:
            if connection is not None:
                connection.close()
        try:
            return response.status, json.loads(text)
        except (ValueError, RecursionError):
            return response.status, None


def _connection(parts: SplitResult, timeout_s: float) -> HTTPConnection:
    """Not yet connected. Raises HTTPException for a host that is none."""
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return HTTPSConnection(host, parts.port, timeout=timeout_s, context=context)
    return HTTPConnection(host, parts.port, timeout=timeout_s)


def listens(port: int) -> bool:
    """Whether anybody accepts connections at ``port`` of this host."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _listed(found: Any) -> list[str]:
    data = found.get("data") if isinstance(found, dict) else None
    entries = data if isinstance(data, list) else []
    return [str(each["id"]) for each in entries if isinstance(each, dict) and "id" in each]


def _reason(found: Any) -> str:
    error = found.get("error") if isinstance(found, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    return f" ({printable(str(said))[:200]})" if said else ""
