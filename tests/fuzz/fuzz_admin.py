"""Bodies, paths and queries at the admin API, valid and spoilt, in memory over a store of its own.

Of every answer: no failure of the gateway's, nothing of one in its log, no long stop of the event loop by the
processor's time; an error says what is wrong in words, and names the first member of a body that is. What is
refused changes nothing in the store, its notes for the audit log included.
"""

import asyncio
import math
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote

import orjson
from pydantic import ValidationError
from structlog.testing import capture_logs

from gateway.api.admin.resources.resource import Operation
from gateway.api.admin.resources.table import OPERATIONS
from gateway.domain.scopes import AdminRole
from gateway.domain.state_dir import DATABASE_NAME
from gateway.observability.audit import append_pending_acts
from gateway.storage.usage import Account, Amount
from tests.fuzz.admin_requests import Asked, draw, draw_of_fleet
from tests.gateway.api.admin.house import BODIES, House, enrol, note_failed_delivery
from tests.gateway.api.calls import Call
from tests.gateway.fleet.fleet import deployment
from tests.gateway.scheduling.placement.loadable import (
    FAILED,
    LOADED,
    LOADING,
    LoadingAgent,
    fleet_of,
    loadable,
)
from tests.support.collection import no_collection
from tests.support.loop_stops import LoopStops

STOP_S = 0.05
"""The longest a callback may take, as in the fuzzer of stops."""

WORDS_BYTES = 8192
"""Of an error: it repeats no body."""

COSTS = 10
"""A request with a transaction takes as long as so many inputs of other fuzzers."""

_REQUESTS_OF_A_HOUSE = 300
_CHUNK_BYTES = 32 * 1024
_TIMES = 3
_SAID = {
    "life_s": "last",
    "overlap_s": "a secret that was replaced works for",
    "models": "model pattern",
    "routes": "route",
    "tiers": "tier",
    "where": "where",
    "labels": "label",
    "targets": "target",
    "fallback": "fallback",
    "to": "change",
}
"""What of a refusal's words tells of a member, where that is not its name."""
_SUBJECTS = ("tenant", "model", "target", "weight", "share", "version", "token", "agent")
"""What else they tell of: names in the path, and what a member is made of."""


def _first_wrong(operation: Operation, raw: bytes) -> str | None:
    """Which member of a body is the first that is wrong by its type; None: none is, or it is no object."""
    kind = BODIES.get(operation.name)
    try:
        body = orjson.loads(raw) if raw else {}
        if kind is not None and isinstance(body, dict):
            kind.model_validate(body)
    except orjson.JSONDecodeError:
        return None
    except ValidationError as error:
        return ".".join(str(each) or '""' for each in error.errors()[0]["loc"])[:100]
    return None


def _is_named(operation: Operation, message: str) -> bool:
    """Whether words that the store refused a body with say which member of it they are about."""
    members = BODIES[operation.name].model_fields
    words = (*members, *(_SAID.get(name, name) for name in members), *_SUBJECTS)
    return any(word in message for word in words)


class _Round:
    """Requests at one house."""

    def __init__(self, random: Random, directory: Path) -> None:
        self.random = random
        self.house = House(directory, fleet_of(min_residence_s=1.0))
        self.database = directory / DATABASE_NAME
        for name in ("gpu-1", "gpu-2"):
            enrol(self.house.store, name)
        self.house.fleet.connect("gpu-1", deployment("m"))
        models = (loadable("org/llama"), loadable("tiny", 5, version="v2"), loadable("huge", 1000))
        self.hosts = [LoadingAgent(self.house.fleet, *models, name=name) for name in ("gpu-2", "gpu-3")]
        self.house.store.keys.create("ci", "acme", 1.0)
        used = {Account("2026-11-21", f"k{n}", "acme", f"m{n}"): Amount(1, n, 2) for n in range(7)}
        self.house.store.usage.add(used)
        note_failed_delivery(self.house.store)
        append_pending_acts(self.house.store)
        every = OPERATIONS.values()
        self.operations = [each for each in every if not each.only_here and not each.own_process]
        self.with_query = [operation for operation in self.operations if operation.query]
        self.with_body = [operation for operation in self.operations if operation.name in BODIES]

    def tokens(self) -> list[str]:
        """Ids of some join tokens."""
        return [record.id for record in self.house.store.tokens.list()][-3:]

    def stored(self) -> bytes:
        """A digest of all that the store holds."""
        digest = sha256()
        with closing(sqlite3.connect(self.database)) as connection:
            tables = connection.execute(
                "SELECT name FROM sqlite_master WHERE type='table' ORDER BY name"
            ).fetchall()
            for (table,) in tables:
                rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
                digest.update(repr((table, rows)).encode("utf-8", "surrogatepass"))
        return digest.digest()

    async def one(self, stops: LoopStops) -> None:
        random = self.random
        lot = random.random()
        operation = random.choice(
            self.with_body if lot < 0.55 else self.with_query if lot < 0.7 else self.operations
        )
        if random.random() < 0.1:
            self.pass_time()
            operation = draw_of_fleet(random)
        role = AdminRole.ADMIN if random.random() < 0.9 else random.choice(list(AdminRole))
        asked = draw(random, operation, self.house.keys[role], self.tokens())
        longest_s = math.inf
        for _ in range(_TIMES):  # what is long is long again; a machine that gives its time away is not
            before = self.stored()
            await asyncio.sleep(0)  # what was done until here is ours
            call, logs, stop_s = await self.ask(asked, stops)
            longest_s = min(longest_s, stop_s)
            self.check(asked, call, before, logs)
            if longest_s < STOP_S:
                return
        raise AssertionError(f"{longest_s * 1000:.0f} ms for {asked}")

    def pass_time(self) -> None:
        """What hosts were told to load or unload is mostly done by now."""
        with capture_logs():
            self._pass_time()

    def _pass_time(self) -> None:
        self.house.fleet.advance(self.random.choice((0.5, 5.0)))
        for host in self.hosts:
            for state in list(host.states.values()):
                if self.random.random() < 0.3:
                    continue
                if state.status is LOADING:
                    outcome = self.random.choice((LOADED, LOADED, FAILED))
                    host.become(state.model, outcome, reason="" if outcome is LOADED else "out of memory")
                elif state.reason == "unloading":
                    host.unloaded(state.model)

    async def ask(self, asked: Asked, stops: LoopStops) -> tuple[Call, Sequence[Mapping[str, Any]], float]:
        """The answer, what was logged meanwhile, and the longest stop in seconds."""
        path, raw = asked.path, asked.raw
        stops.longest_s = 0.0
        call = Call(
            self.house.app, asked.method, path, asked.headers, decoded=unquote(path), query=asked.query
        )
        for start in range(0, max(1, len(raw)), _CHUNK_BYTES):
            call.body(raw[start : start + _CHUNK_BYTES], more=start + _CHUNK_BYTES < len(raw))
        with capture_logs() as logs:
            async with asyncio.timeout(30):
                await call.task
        return call, logs, stops.longest_s

    def check(self, asked: Asked, call: Call, before: bytes, logs: Sequence[Mapping[str, Any]]) -> None:
        operation = asked.operation
        what = f"{call.status} for {asked}: {call.content[:300]!r}"
        assert call.complete, what
        not_loadable = call.status == 503 and b'"model_not_loadable"' in call.content
        assert call.status < 500 or not_loadable, f"{what}; log: {logs}"
        worse = [
            entry for entry in logs if entry["log_level"] in ("error", "critical") or "exc_info" in entry
        ]
        assert not worse, f"{worse} at {what}"
        if call.status == 200 and asked.method not in ("GET", "HEAD"):
            return
        assert before == self.stored(), f"the store is another after {what}"
        if call.status == 200 or not call.content:
            return  # nothing is said of what was read, nor to HEAD
        said = orjson.loads(call.content)["error"]
        assert said["message"].strip(), what
        assert len(call.content) <= WORDS_BYTES, what
        if said["code"] == "invalid_value" and operation.query:
            words = ("The query", *operation.query, said["param"])
            assert any(word and word in said["message"] for word in words), f"{what}; of what is it?"
        if said["code"] == "invalid_value" and operation.name in BODIES and asked.method == operation.method:
            wrong = _first_wrong(operation, asked.raw)
            assert said["param"] == wrong, f"{what}; the member is {wrong}"
            assert wrong is not None or _is_named(operation, said["message"]), f"{what}; which member is it?"


async def _requests(random: Random, count: int) -> None:
    stops = LoopStops()
    with tempfile.TemporaryDirectory(prefix="trunkline-fuzz-") as directory:
        with capture_logs():
            at = _Round(random, Path(directory) / "state")
        try:
            with stops.measured():
                for _ in range(count):
                    await at.one(stops)
        finally:
            at.house.store.close()


def fuzz(random: Random, inputs: int) -> int:
    """Requests are fewer than ``inputs``: each is a transaction."""
    with no_collection():
        wanted = max(1, inputs // COSTS)
        for done in range(0, wanted, _REQUESTS_OF_A_HOUSE):
            asyncio.run(_requests(random, min(_REQUESTS_OF_A_HOUSE, wanted - done)))
        return wanted * COSTS
