"""What the processes on other hosts say, for operators who ask this one. A process that does not answer is
named with the reason, and never left out in silence.

Belongs to the event loop's thread. Who is asked tells of itself only, so no question goes on to others.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import orjson

from gateway.cluster.directory import DEAD_S
from gateway.cluster.process_client import NoAnswer, get
from gateway.cluster.process_tokens import is_signed, make_token
from gateway.domain.http_get import HttpAnswer
from gateway.storage.processes import ProcessRecord

ANSWER_S = 2.0
"""For a whole answer, with the connection."""

AT_ONCE = 8
"""Answers that are read at a time: they may be long."""

PATH = "/cluster/"
SCHEME = "trunkline-process"
SIGNATURE = "x-trunkline-signature"

Json = dict[str, Any]


class ProcessRows(Protocol):
    """The rows of all processes; :class:`gateway.cluster.member.ClusterMember`."""

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> Collection[ProcessRecord]: ...
    def store_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class ProcessAnswers:
    """What others said to one question, and why the rest did not, by process."""

    found: dict[str, Json] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


class RemoteProcesses:
    """Those of this gateway that are on other hosts."""

    def __init__(
        self,
        members: ProcessRows,
        key: bytes,
        here: Callable[[], Collection[str]],
        ca_file: Path | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        """``key`` is the members' own. ``here`` names processes that are asked in another way."""
        self._members = members
        self._key = key
        self._here = here
        self._ca_file = ca_file
        self._answer_s = answer_s
        self._room = asyncio.Semaphore(AT_ONCE)

    async def ask_all(self, question: str, **facts: Any) -> ProcessAnswers:
        """Ask all that are alive, at the same time."""
        rows = [each for each in self._others() if self._silent_s(each) < DEAD_S]
        said = await asyncio.gather(*(self._try(each, question, facts) for each in rows))
        answers = ProcessAnswers()
        for row, answer in zip(rows, said, strict=True):
            if isinstance(answer, NoAnswer):
                answers.missing[row.id] = str(answer)
            else:
                answers.found[row.id] = answer
        return answers

    def gone(self) -> dict[str, str]:
        """Processes that do not write their rows any more and have not taken them away, and since when."""
        silent = {each.id: self._silent_s(each) for each in self._others()}
        return {
            name: f"it has not been heard of for {silent_s:.0f} s"
            for name, silent_s in silent.items()
            if silent_s >= DEAD_S
        }

    def _others(self) -> list[ProcessRecord]:
        here = {self._members.name, *self._here()}
        return [each for each in self._members.rows if each.id not in here]

    def _silent_s(self, row: ProcessRecord) -> float:
        return max(0.0, self._members.store_s() - row.heard)

    async def _try(self, row: ProcessRecord, question: str, facts: Json) -> Json | NoAnswer:
        try:
            async with self._room:
                return await self._ask(row, question, facts)
        except NoAnswer as error:
            return error

    async def _ask(self, row: ProcessRecord, question: str, facts: Json) -> Json:
        """Raises NoAnswer."""
        address = row.address or row.url
        if address is None:
            raise NoAnswer("it does not say where it can be asked: set cluster.address there")
        query = f"?{urlencode(facts)}" if facts else ""
        target = f"{PATH}{row.id}/{question}{query}"
        token = make_token(self._key, row.id, target, self._members.store_s())
        answer = await get(address, target, f"{SCHEME} {token}", self._answer_s, self._ca_file)
        if answer.status != 200:
            raise NoAnswer(_refusal(answer))
        body = bytes(answer.body)
        if not is_signed(self._key, token, body, answer.headers.get(SIGNATURE, "")):
            raise NoAnswer("somebody else answers at its address")
        try:
            found = orjson.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise NoAnswer("its answer cannot be read")
        return found


def _refusal(answer: HttpAnswer) -> str:
    """What a status says. It is not signed, so nothing of the answer is shown."""
    if answer.status == 404:
        return "it is of an earlier version, or another server answers at its address"
    if answer.status == 421:
        return "another process of the gateway answers at its address: set cluster.address there"
    return f"it answers with status {answer.status}"
