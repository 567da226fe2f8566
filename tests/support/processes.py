"""Gateway, agents and engines as the processes they are for users, each on a port of its own.

A :class:`House` holds them and stops them, in the opposite order of their start, when its context ends. Their
logs lie in its directory; the fixtures of ``tests/integration`` attach them to a failure.
"""

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gateway.domain.scopes import AdminRole, Scopes
from gateway.storage import Store
from gateway.tools.quickstart.processes import Child, Children
from shared.process.ports import free_port
from tests.support import forks
from tests.support.scripted_engine import tokens_of

START_S = 120.0
"""Patience with a process that starts on a busy machine."""


def fetch(url: str, *, body: object = None, key: str | None = None, timeout_s: float = 30.0) -> Any:
    """The JSON at ``url``; a POST if there is a body. Raises OSError, HTTP errors included."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return json.loads(response.read())


_LOOK_S = 0.5
"""What one look at a condition counts for at most: a machine that stands still uses up no patience."""
_LEAST_S, _MOST_S, _SHARE = 0.01, 0.05, 0.05
"""Between two looks, and what part of the time waited so far: looks take CPU time from what is waited for."""


def until(
    what: str, condition: Callable[[], object], timeout_s: float = 60.0, *, most_s: float = _MOST_S
) -> None:
    """Return as soon as ``condition`` holds; fail the test naming ``what`` if it does not in time. ``most_s``
    is the longest time between two looks."""
    left_s, looked_s = timeout_s, time.monotonic()
    while not condition():
        if left_s < 0.0:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(min(most_s, max(_LEAST_S, _SHARE * (timeout_s - left_s))))
        before_s, looked_s = looked_s, time.monotonic()
        left_s -= min(looked_s - before_s, _LOOK_S)


@dataclass(frozen=True, slots=True)
class Engine:
    """A scripted engine in a process of its own."""

    child: Child
    url: str

    def stats(self) -> dict[str, Any]:
        """Its counters (``tests.support.scripted_engine.Stats``); an engine at full speed answers late."""
        return dict(fetch(f"{self.url}/_stats", timeout_s=30.0))

    def direct(self, **order: object) -> None:
        """Change what it does: ``default``, ``once``, ``waiting``, ``kv_use``, ``healthy``, ``models``."""
        fetch(f"{self.url}/_script", body=order)

    async def step(self, until: Callable[[], bool]) -> None:
        """Have it write tokens of stepped answers until that holds; their tests decide how long they last."""
        while not until():
            await asyncio.to_thread(fetch, f"{self.url}/_step", body={})
            await asyncio.sleep(0.02)

    def write_until(self, tokens: int) -> None:
        """Have it write tokens of stepped answers until it has written so many in all."""

        def there() -> bool:
            if self.stats()["sent_tokens"] >= tokens:
                return True
            fetch(f"{self.url}/_step", body={})
            return False

        until(f"{tokens} tokens are written", there, 60.0)

    def until_idle(self, timeout_s: float = 30.0) -> None:
        """Return once no request runs. What a test leaves running would take longer than that."""
        until("the engine is idle", lambda: self.stats()["running"] == 0, timeout_s)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway in a process of its own, and its state directory."""

    child: Child
    port: int
    state: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client is given."""
        return f"{self.url}/v1"

    def key(self, name: str, scopes: Scopes | None = None, role: AdminRole | None = None) -> str:
        """A new API key, which may ask for what ``scopes`` say, and administer as ``role`` says."""
        with Store.open(self.state) as store:
            return store.keys.create(name, "tests", time.time(), scopes=scopes, role=role)

    def token(
        self, models: Sequence[str] = ("*",), uses: int = 1, labels: Mapping[str, str] | None = None
    ) -> str:
        """A new join token."""
        with Store.open(self.state) as store:
            return store.tokens.create(600.0, uses, list(models), dict(labels or {}), time.time())[1]

    def key_and_token(self, name: str) -> tuple[str, str]:
        """A new API key and a new join token, made at once: each waits for the gateway."""
        with Store.open(self.state) as store:
            key = store.keys.create(name, "tests", time.time())
            return key, store.tokens.create(600.0, 1, ["*"], {}, time.time())[1]

    def models(self, key: str) -> list[str]:
        """The models on offer."""
        return [entry["id"] for entry in fetch(f"{self.base_url}/models", key=key)["data"]]

    def serving(self) -> bool:
        """True once ``/readyz`` says so."""
        try:
            fetch(f"{self.url}/readyz")
        except OSError:
            return False
        return True


class House:
    """Everything a test has running."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.children = Children(directory, forks.child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises AssertionError when one of them had to be killed, unless there is an error already."""
        self.children.__exit__(kind, error, trace)
        if kind is None:
            killed = "\n".join(f"the {child.name} said:\n{child.tail()}" for child in self.children.killed)
            assert not self.children.killed, f"did not stop when they were asked to:\n{killed}"

    def gateway(
        self,
        *arguments: str,
        name: str = "gateway",
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> Gateway:
        """Start a gateway and wait until it takes requests."""
        port = free_port() if port is None else port
        state = self.directory / f"{name}-state"
        listen = ("--listen", f"127.0.0.1:{port}", "--state", str(state))
        child = self.children.start(name, "gateway", *listen, *arguments, environment=environment)
        gateway = Gateway(child, port, state)
        self.children.wait_until(gateway.serving, "the gateway is ready", START_S)
        return gateway

    def engine(self, *arguments: str, name: str = "engine") -> Engine:
        """Start a scripted engine and wait until it listens."""
        child = self.children.start(name, "tests.support.scripted_engine", *arguments)
        return Engine(child, self.listening(child))

    def listening(self, child: Child) -> str:
        """What a process that prints ``listening WHERE`` printed."""
        marker = "listening "
        self.children.wait_until(lambda: marker in child.log.read_text(), f"{child.name} listens", START_S)
        return child.log.read_text().partition(marker)[2].split()[0]

    def agent(
        self,
        gateway: Gateway,
        engine: str | None,
        *arguments: str,
        name: str = "agent",
        dial: str | None = None,
        token: str | None = "",
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start an agent for the engine at that URL (or ``--torch`` for ``torch:DIR``, or None where its
        settings name engines); does not wait for it.

        ``dial`` is where it dials instead of at the gateway directly; ``token`` is the one it joins with, by
        default a new one, or None if it joined before.
        """
        join = () if token is None else ("--join", token or gateway.token())
        return self.children.start(
            name,
            "agent",
            *("--gateway", dial or gateway.url, *join, "--name", name),
            *(*_engine(engine), "--state", str(self.directory / f"{name}-state"), *arguments),
            environment=environment,
        )

    def wait_for_model(self, gateway: Gateway, key: str, model: str, timeout_s: float = START_S) -> None:
        """Return once the model is on offer."""
        self.children.wait_until(lambda: model in gateway.models(key), f"{model} is on offer", timeout_s)

    def logs(self) -> dict[str, str]:
        """The last lines of every process."""
        texts = {path.stem: path.read_text("utf-8", "replace") for path in self.directory.glob("*.log")}
        return {name: "\n".join(text.splitlines()[-40:]) for name, text in texts.items()}


def _engine(engine: str | None) -> tuple[str, ...]:
    """The option that names it."""
    if engine is None:
        return ()
    return ("--torch", engine[6:]) if engine.startswith("torch:") else ("--engine", engine)


def answer_to(prompt: str, count: int) -> str:
    """What a scripted engine says to ``prompt`` in ``count`` tokens."""
    return "".join(tokens_of(prompt, count))


def command(*arguments: str) -> list[str]:
    """The command line of ``trunkline`` with these arguments."""
    return [sys.executable, "-m", "shared.process.cli", *arguments]
