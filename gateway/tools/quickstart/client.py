"""The few requests a quickstart makes, as any client makes them: with nothing but the standard library."""

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gateway.tools.quickstart.errors import WrongAnswer

_TIMEOUT_S = 120.0
"""A first answer on a slow, busy machine; a model's first step is its slowest."""


@dataclass(slots=True)
class Streamed:
    """What is known of a streamed answer so far; complete once its pieces were all taken."""

    began_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    done: bool = False

    @property
    def first_token_s(self) -> float:
        """Seconds from the request to the first piece of text."""
        assert self.first_s is not None, "no text came yet"
        return self.first_s - self.began_s


class Client:
    """Speaks to one gateway with one key. Raises WrongAnswer for anything but a 200."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._key = key

    def ready(self) -> bool:
        """True once the gateway would take requests."""
        try:
            return self._ask("GET", "/readyz", None)[0].status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def models(self) -> tuple[str, ...]:
        """The models on offer now."""
        try:
            return tuple(entry["id"] for entry in self.get("/v1/models")["data"])
        except (OSError, http.client.HTTPException, WrongAnswer):
            return ()

    def loading(self) -> str:
        """What the engines do that do not serve yet, in words; empty where nobody has said."""
        try:
            agents = self.get("/admin/agents")["agents"]
        except (OSError, http.client.HTTPException, WrongAnswer):
            return ""
        engines = [engine for agent in agents for engine in agent.get("engines", ())]
        said = ((engine["reason"], engine["loading"]) for engine in engines if engine["status"] != "loaded")
        return "; ".join(", ".join(filter(None, words)) for words in said)

    def get(self, path: str) -> Any:
        return self._json("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._json("POST", path, body)

    def stream_chat(self, body: dict[str, Any], facts: Streamed) -> Iterator[str]:
        """The pieces of text of a streamed chat as they come; ``facts`` is filled on the way."""
        response, connection = self._ask("POST", "/v1/chat/completions", body | {"stream": True})
        with connection:
            _must_be_ok(response)
            for line in response:
                if line.startswith(b"data: [DONE]"):
                    facts.done = True
                elif line.startswith(b"data: ") and (text := _text_of(line[6:])):
                    facts.first_s = facts.first_s or time.monotonic()
                    yield text

    def _json(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        response, connection = self._ask(method, path, body)
        with connection:
            _must_be_ok(response)
            return json.loads(response.read())

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[http.client.HTTPResponse, "_Connection"]:
        connection = _Connection("127.0.0.1", self._port, timeout=_TIMEOUT_S)
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection.getresponse(), connection


class _Connection(http.client.HTTPConnection):
    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _must_be_ok(response: http.client.HTTPResponse) -> None:
    if response.status != http.client.OK:
        said = response.read().decode("utf-8", "replace")
        raise WrongAnswer(f"the gateway answered {response.status}: {said}")


def _text_of(event: bytes) -> str:
    value = json.loads(event)
    if "error" in value:
        raise WrongAnswer(f"the stream broke: {value['error'].get('message')}")
    return "".join(choice["delta"].get("content") or "" for choice in value["choices"])
