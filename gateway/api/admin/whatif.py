"""``/admin/whatif``: the last hour's requests, replayed through the simulator with another policy or another
fleet (docs/admin.md).

It changes nothing and shows nothing that decision records do not show, so the role viewer may run it. What
it takes is bounded: one process at a time on a host, of the lowest priority, for so long and for so many
requests. It ends with the connection of whoever asked.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.api.admin.resources.resource import Json
from gateway.api.admin.routes import AdminCall, AdminMethod, read_body, read_query, validated
from gateway.api.admin.whatif_body import (
    GOOD_EACH_S,
    GOOD_FIRST_S,
    MOST_DEPLOYMENTS,
    MOST_MINUTES,
    WhatIfBody,
)
from gateway.api.admin.whatif_child import WhatIfRunner, WhatIfTask
from gateway.api.exchange.reply import EVENTS
from gateway.dispatch.decisions.records import RequestRecords
from gateway.domain.errors import BadRequest, RequestError
from gateway.domain.scopes import AdminRole
from gateway.domain.slices import in_slices
from gateway.observability.audit import facts_of
from gateway.observability.audit.records import timestamp
from gateway.scheduling import POLICIES
from gateway.scheduling.learning.devices import CLASSES

MOST_REQUESTS = 60_000
"""Replayed at once; of more, those of the busiest time."""

_FACTS = {"minutes": {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_MINUTES}}


@dataclass(frozen=True)
class WhatIfAdmin:
    """The pages."""

    fleet: Callable[[], Json]
    """The fleet of now; :func:`gateway.app.whatif.fleet_now`."""
    records: RequestRecords
    log: str | None
    """The directory of the audit log; None: requests are not in it."""
    runner: WhatIfRunner
    most: int = MOST_REQUESTS
    wall: Callable[[], float] = time.time
    """Gives seconds since 1970."""

    def methods(self) -> list[AdminMethod]:
        """What may be asked."""
        viewer = AdminRole.VIEWER
        return [
            AdminMethod("GET", "/admin/whatif", viewer, self.show_whatif),
            AdminMethod("POST", "/admin/whatif", viewer, self.run_whatif, body=WhatIfBody),
            AdminMethod("GET", "/admin/whatif/facts", viewer, self.export_facts, _FACTS),
        ]

    async def show_whatif(self, call: AdminCall) -> Json:
        """What there is to choose from: models with their deployments, policies, classes of devices."""
        fleet = self.fleet()
        models: dict[str, Json] = {}
        for each in fleet["deployments"]:
            model = models.setdefault(
                each["model"], {"model": each["model"], "slots": 0, "deployments": 0, "devices": {}}
            )
            model["slots"] += each["slots"]
            model["deployments"] += 1
            model["devices"][each["device"]] = model["devices"].get(each["device"], 0) + 1
        for name, model in models.items():
            model["policy"] = fleet["policies"].get(name, fleet["policy"])
            model["gpu_hour"] = fleet["gpu_hour"].get(name)
        return {
            "models": sorted(models.values(), key=lambda each: (-each["slots"], each["model"])),
            "policy": fleet["policy"],
            "policies": sorted(POLICIES),
            "queue": {name: fleet["queue"][name] for name in ("max_requests", "max_wait_s")},
            "devices": [
                {"device": each.name, "memory_gb": each.memory_gb, "source": each.source}
                for each in CLASSES.values()
            ],
            "level": {"first_token_s": GOOD_FIRST_S, "token_s": GOOD_EACH_S},
            "elsewhere": list(fleet["elsewhere"]),
            "source": "decision records" if self.log is None else "audit log",
            "limits": {
                "requests": self.most,
                "minutes": MOST_MINUTES,
                "deployments": MOST_DEPLOYMENTS,
                "seconds": self.runner.longest_s,
            },
        }

    async def run_whatif(self, call: AdminCall) -> Json | None:
        """Replay what was asked for. Who accepts events gets ``progress`` and then ``result``, or ``failed``;
        everybody else the result alone."""
        body = validated(WhatIfBody, await read_body(call.exchange))
        task = await self._task("run", body)
        exchange = call.exchange
        with self.runner.place():
            async with exchange.while_here():
                if EVENTS not in exchange.fields.get(b"accept", b"").lower():
                    return await self._result(task)
                await self._tell(call, task)
        await exchange.reply.end()
        return None

    async def export_facts(self, call: AdminCall) -> Json:
        """The facts of the last minutes, as ``trunkline whatif --facts`` takes them. Tenants are numbers."""
        minutes = _minutes(read_query(call.exchange))
        task = await self._task("facts", {"minutes": minutes})
        with self.runner.place():
            async with call.exchange.while_here():
                return await self._result(task)

    async def _task(self, wanted: Any, body: Json) -> WhatIfTask:
        records = [] if self.log is not None else await self._records()
        return WhatIfTask(wanted, self.fleet(), body, self.wall(), self.most, self.log, records)

    async def _records(self) -> list[Json]:
        """Decision records of requests that are over, as lines of the audit log have them."""
        return [
            {"at": timestamp(each.facts.at_s), **facts_of(each.facts)}
            async for each in in_slices(self.records.over())
        ]

    async def _result(self, task: WhatIfTask) -> Json:
        async with contextlib.aclosing(self.runner.run(task)) as lines:
            async for line in lines:
                if "result" in line:
                    result: Json = line["result"]
                    return result
        raise AssertionError("it ends with a result or raises")

    async def _tell(self, call: AdminCall, task: WhatIfTask) -> None:
        """Events. What is wrong before the first of them is told as an ordinary refusal."""
        reply = call.exchange.reply
        async with contextlib.aclosing(self.runner.run(task)) as lines:
            try:
                async for line in lines:
                    if not reply.started:
                        await reply.start_events()
                    for name, data in line.items():
                        await reply.write(
                            b"event: %b\ndata: %b\n\n" % (name.encode("ascii"), orjson.dumps(data))
                        )
            except RequestError as error:
                if not reply.started:
                    raise
                await reply.write(b"event: failed\ndata: %b\n\n" % orjson.dumps(error.openai_body()))


def _minutes(query: dict[str, str]) -> float:
    """Raises BadRequest."""
    text = query.get("minutes", "60")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST_MINUTES:
        raise BadRequest(
            f"minutes is a number above 0, {MOST_MINUTES} at most.", param="minutes", code="invalid_value"
        )
    return value
