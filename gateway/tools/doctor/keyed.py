"""Checks of a gateway that take a key: who it is there, which versions run, what its models do."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from typing import Any

import orjson

from gateway.tools.doctor.way import NoWay, TimedResponse, Way
from shared.process.checks import Check, CheckOutcome, failed, passed, skipped, warned
from shared.process.connection_errors import explain_http_error
from shared.process.excerpt import printable
from shared.process.startup import program_version

NO_KEY = "It takes a key: give --key, or TRUNKLINE_KEY."
NO_ROLE = "It takes a key with the role viewer (trunkline key create --role viewer)."
GENERATES_S = 120.0
"""For one short answer: a model may have to be loaded."""
MOST_TOKENS = 8

Json = dict[str, Any]


class NotAsked(Exception):
    """What was to be asked cannot be told. The message is a sentence that says why."""


@dataclass
class KeyedGateway:
    """Asks the gateway at the end of a way."""

    way: Way
    key: str | None = field(repr=False)

    @contextmanager
    def ask(
        self, method: str, path: str, body: Json | None = None, timeout_s: float | None = None, **more: Any
    ) -> Iterator[TimedResponse]:
        """Raises NotAsked without a key, and where no answer comes."""
        if not self.key:
            raise NotAsked(NO_KEY)
        headers = {"authorization": f"Bearer {self.key}", "accept": "application/json, text/event-stream"}
        data = None
        if body is not None:
            data, headers["content-type"] = orjson.dumps(body), "application/json"
        try:
            with self.way.request(method, path, headers, data, timeout_s, **more) as response:
                yield response
        except NoWay as error:
            raise NotAsked(f"The gateway cannot be asked: {error}.") from error
        except (OSError, HTTPException) as error:
            raise NotAsked(f"No answer came: {explain_http_error(self.way.target.url, error)}.") from error

    def json(self, path: str) -> Json:
        """Raises NotAsked for a status that is no success, too."""
        with self.ask("GET", path) as response:
            status, text = response.status, response.body()
        if status == 403:
            raise NotAsked(NO_ROLE)
        if status == 404:
            raise NotAsked("This gateway is of an earlier version, which cannot tell.")
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            found = None
        if status != 200 or not isinstance(found, dict):
            raise NotAsked(f"The gateway answers with status {status}.")
        return found

    @cached_property
    def diagnosis(self) -> Json:
        """What the gateway says for doctors. Raises NotAsked."""
        return self.json("/admin/diagnosis")

    def agents(self) -> Sequence[Mapping[str, Any]]:
        """Those that it knows. Raises LookupError."""
        try:
            return list(self.json("/admin/agents")["agents"])
        except (NotAsked, KeyError, TypeError) as error:
            raise LookupError(str(error)) from error


@dataclass
class KeyedChecks:
    """Looks at one gateway."""

    gateway: KeyedGateway
    model: str | None = None
    """To be asked; None: any that is ready."""
    own_version: Callable[[], str] = program_version
    wall: Callable[[], float] = time.time

    def all(self) -> list[Check]:
        answers = ("gateway-answers",)
        return [
            Check("key", self.check_key, after=answers),
            Check("versions", self.versions, after=(*answers, "key")),
            Check("models", self.models, after=(*answers, "key")),
            Check("real-request", self.real_request, after=("models",), limit_s=GENERATES_S + 15.0),
        ]

    def check_key(self) -> CheckOutcome:
        try:
            with self.gateway.ask("GET", "/v1/models") as response:
                status = response.status
        except NotAsked as error:
            return skipped(str(error)) if str(error) == NO_KEY else failed(str(error), "Run this again.")
        if status in (401, 403):
            return failed(
                f"The gateway does not accept the key (status {status}).",
                "Look for it in trunkline key list: it may be revoked, expired, or of another gateway.",
            )
        if status != 200:
            return failed(
                f"The list of models is answered with status {status}.", "Look at the gateway's log."
            )
        try:
            self.gateway.json("/admin/processes")
        except NotAsked as error:
            return passed(
                f"The key is accepted. {error}"
                if str(error) != NO_ROLE
                else "The key is accepted; it has no role, so some checks are skipped.",
                role=False,
            )
        return passed("The key is accepted, and has a role.", role=True)

    def versions(self) -> CheckOutcome:
        own = self.own_version()
        try:
            there = str(self.gateway.json("/version")["version"])
        except (NotAsked, KeyError) as error:
            return skipped(str(error))
        facts = {"here": own, "gateway": there}
        if there != own:
            return warned(
                f"The gateway's version is {printable(there)}, this program's is {own}.",
                "Versions work together; what only one of them has is not there. Update the older one.",
                **facts,
            )
        return passed(f"This program and the gateway are of version {own}.", **facts)

    def models(self) -> CheckOutcome:
        try:
            listed = self._listed()
        except NotAsked as error:
            return skipped(str(error)) if str(error) == NO_KEY else failed(str(error), "Look at the gateway.")
        names = [str(each.get("id", "")) for each in listed]
        if self.model is not None and self.model not in names:
            return failed(
                f"The model {self.model!r} is not served, or not for this key.",
                "Look at trunkline models and trunkline status.",
                models=names[:100],
            )
        if not names:
            return failed(
                "No model is served, or none for this key.",
                "Look at trunkline status: is an agent connected, and does its engine work? There "
                "`trunkline doctor` says more.",
            )
        counted = "1 model is" if len(names) == 1 else f"{len(names)} models are"
        return passed(f"{counted} served.", models=names[:100])

    def _listed(self) -> list[Json]:
        found = self.gateway.json("/v1/models").get("data")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def real_request(self) -> CheckOutcome:
        try:
            listed = self._listed()
            wanted = [each for each in listed if self.model in (None, each.get("id"))]
            chosen = next((each for each in wanted if "chat" in (each.get("routes") or ("chat",))), None)
            if chosen is None:
                return skipped("No model has the route chat.")
            return self._asked(str(chosen["id"]))
        except NotAsked as error:
            if str(error) == NO_KEY:
                return skipped(NO_KEY)
            return failed(str(error), "Look at the checks above, then at the gateway's log.")

    def _asked(self, model: str) -> CheckOutcome:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": MOST_TOKENS,
            "stream": True,
        }
        with self.gateway.ask("POST", "/v1/chat/completions", body, GENERATES_S) as response:
            times, text = [], b""
            for at_s, piece in response.pieces():
                times.append(at_s)
                text += piece
        if response.status != 200:
            return failed(
                f"{model} answers with status {response.status}: {_said(text)}",
                "docs/troubleshooting.md explains the code.",
                status=response.status,
            )
        if (broken := _error_in(text)) or not _has_tokens(text):
            return failed(
                f"{model} began an answer that {f'failed: {broken}' if broken else 'has no token'}.",
                "Run trunkline doctor on the agent's host, and look at the engine's log.",
            )
        return _timed(model, response, times)


def _timed(model: str, response: TimedResponse, times: Sequence[float]) -> CheckOutcome:
    hops, sent_s = response.hops, response.sent_s
    queue = response.header("x-trunkline-queue-ms")
    steps = {
        "dns": hops.dns_s,
        "connect": hops.connect_s,
        "proxy": hops.proxy_s,
        "tls": hops.tls_s,
        "queue": float(queue) / 1000 if queue else None,
        "answer begins": response.head_s - sent_s,
        "first bytes": times[0] - sent_s,
        "all": times[-1] - sent_s,
    }
    known = {name: round(took_s * 1000, 1) for name, took_s in steps.items() if took_s}
    shown = ", ".join(f"{name} {took_ms:g} ms" for name, took_ms in known.items())
    agent = response.header("x-trunkline-agent")
    by = f" by agent {printable(agent)}" if agent else ""
    return passed(f"{printable(model)} answers{by}: {shown}.", model=model, agent=agent or None, ms=known)


def _said(text: bytes) -> str:
    try:
        return printable(str(orjson.loads(text)["error"]["message"]))
    except (ValueError, TypeError, KeyError):
        return "no reason is given."


def _events(text: bytes) -> Iterator[Json]:
    for line in text.splitlines():
        if line.startswith(b"data:") and not line.endswith(b"[DONE]"):
            try:
                found = orjson.loads(line[5:])
            except orjson.JSONDecodeError:
                continue
            if isinstance(found, dict):
                yield found


def _error_in(text: bytes) -> str:
    for event in _events(text):
        if isinstance(error := event.get("error"), dict):
            return printable(str(error.get("message", "no reason is given"))).rstrip(".")
    return ""


def _has_tokens(text: bytes) -> bool:
    """Whether any event says something: text, or that a limit ended it, as where it is only thought."""
    for event in _events(text):
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if any(value for name, value in delta.items() if name != "role"):
                return True
            if choice.get("finish_reason") == "length":
                return True
    return False
