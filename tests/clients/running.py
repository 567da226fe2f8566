"""Runs the programs of clients against a gateway."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.clients.install import Client, NotInstalled, command_of

CHECKS = ("chat", "stream", "tools", "structured", "responses", "messages", "embeddings")
PROGRAM_S = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """A model at a gateway, as programs are told of it."""

    title: str
    """The engine, for people."""
    url: str
    key: str
    model: str
    embedder: str
    """The model that gives embeddings."""
    alias: str = ""
    """A name of a model of Anthropic's that stands for ``model`` at the gateway."""
    echoes: bool = False
    """It repeats what it is told."""

    @property
    def facts(self) -> str:
        base = f"{self.url}/v1"
        said = {"url": self.url, "base_url": base, "key": self.key, "model": self.model}
        more = {"embedder": self.embedder, "alias": self.alias, "echoes": self.echoes}
        return json.dumps(said | more)


@dataclass(slots=True)
class Result:
    """What became of a client's checks."""

    client: Client
    trouble: str = ""
    """Why its program did not run to its end."""
    checks: dict[str, tuple[bool | None, str]] = field(default_factory=dict)
    """Check → whether it passed and what failed; None: it was not asked, and why."""

    @property
    def failures(self) -> list[str]:
        found = [f"{check}: {why}" for check, (ok, why) in self.checks.items() if ok is False]
        return [self.trouble, *found] if self.trouble else found


def read_result(client: Client, output: str, returncode: int, errors: str) -> Result:
    """What a program has written."""
    result = Result(client)
    for line in output.splitlines():
        said: Mapping[str, Any] = json.loads(line) if line.startswith('{"check"') else {}
        if said:
            result.checks[said["check"]] = said["ok"], said["detail"]
    if returncode or not result.checks:
        result.trouble = f"it ended with {returncode}: {errors.strip()[-500:]}"
    return result


async def run_client(client: Client, served: Served) -> Result:
    """Installs it if need be, and runs its program. Never raises."""
    try:
        command = await asyncio.to_thread(command_of, client)
    except NotInstalled as error:
        return Result(client, f"not installed: {error}")
    process = await asyncio.create_subprocess_exec(
        *command, served.facts, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PROGRAM_S):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return Result(client, f"it was not done after {PROGRAM_S:g} s")
    return read_result(client, output.decode(), process.returncode or 0, errors.decode(errors="replace"))


def table(title: str, results: Sequence[Result]) -> str:
    """Markdown: a line for each client."""
    lines = [f"| {title} | {' | '.join(CHECKS)} |", "| --- " * (len(CHECKS) + 1) + "|"]
    for result in results:
        marks = [_mark(result, check) for check in CHECKS]
        lines.append(f"| {result.client.title} ({result.client.versions}) | {' | '.join(marks)} |")
    return "\n".join(lines)


def _mark(result: Result, check: str) -> str:
    ok, _ = result.checks.get(check, (None, ""))
    if result.trouble and check not in result.checks:
        return "?"
    return "–" if ok is None else "yes" if ok else "no"
