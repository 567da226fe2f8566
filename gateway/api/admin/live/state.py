"""The state of one process: agents, deployments, models, totals, and what happened to requests since it was
asked last. Read on the event loop in slices; what has not changed is the same object as before."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from gateway.api.admin.live.patch import Json, without_none
from gateway.dispatch.decisions.description import summarize
from gateway.dispatch.decisions.records import KeptRequest, RequestRecords
from gateway.domain.slices import in_slices
from gateway.fleet.deployment import Deployment
from gateway.fleet.registry import Registry
from gateway.fleet.session import AgentInfo, AgentSession
from gateway.scheduling.queue.waiting_room import WaitingRoom
from gateway.storage.errors import StateError
from shared.protocol.deployment_state import GpuState
from shared.protocol.messages import DeploymentState

MOST_REQUESTS = 200
"""That are told of in one second, and in a snapshot."""

MOST_FLOWS = 100
ENROLLED_EVERY_S = 5.0
"""Agents that are not connected are read from the store so often."""


class _Told(NamedTuple):
    """What was made of an agent or deployment, and from what."""

    key: tuple[Any, ...]
    facts: Json


@dataclass
class ProcessState:
    """Reads one process. Belongs to the event loop's thread."""

    fleet: Registry
    room: WaitingRoom
    records: RequestRecords
    process: str
    enrolled: Callable[[], Iterable[str]] = tuple
    """Names of agents that joined, connected or not. Waits for the disk; raises StateError."""
    troubles: Callable[[], Mapping[str, bool]] = dict
    """What fails on this machine."""
    _agents: dict[str, _Told] = field(default_factory=dict)
    _deployments: dict[str, _Told] = field(default_factory=dict)
    _joined: frozenset[str] = frozenset()
    _joined_s: float = float("-inf")

    async def read(self) -> Json:
        """The state now; see docs/admin.md. Nothing in it is None."""
        await self._read_enrolled()
        agents, deployments = {}, {}
        async for session in in_slices(self.fleet.sessions, 20):
            info = session.describe()
            agents[info.name] = self._agent(info, session)
            stated = {each.id: each for each in info.deployments}
            for each in session.deployments.values():
                deployments[each.key] = self._deployment(each, stated.get(each.id), info.gpus)
        self._agents = {name: told for name, told in self._agents.items() if name in agents}
        self._deployments = {key: told for key, told in self._deployments.items() if key in deployments}
        away = {"status": "away", "draining": False, "streams": 0}
        agents |= {name: away for name in self._joined if name not in agents}
        models = self._models(deployments.values())
        records, live = self.records, self.records.count_not_over()
        waiting = min(live, self.room.requests)
        totals = {"running": live - waiting, "waiting": waiting, "begun": records.ended + live}
        return {
            "agents": agents,
            "deployments": deployments,
            "models": models,
            "totals": totals | {"ended": records.ended, "failed": records.failed},
            "processes": {self.process: {"up": True}},
            "troubles": {name: True for name, fails in self.troubles().items() if fails},
        }

    async def happened(self, since: int | None) -> Json:
        """What became of requests after the one of the number ``since``; None: nothing is told but the number
        to begin with. ``live`` are those that wait or run."""
        records, slow_s = self.records, self.records.settings.slow_s
        ended = [] if since is None else records.since(since)
        lost = 0 if since is None else max(0, records.ended - since - len(ended))
        shown = ended[-MOST_REQUESTS:]
        live = [summarize(each, self.process, slow_s) for each in islice(records.not_over(), MOST_REQUESTS)]
        return {
            "number": records.ended,
            "live": live,
            "ended": [summarize(each, self.process, slow_s) for each in shown],
            "left_out": lost + len(ended) - len(shown),
            "flow": _flow(ended),
            "tokens": _tokens(ended),
        }

    async def _read_enrolled(self) -> None:
        """While the store fails, those that were known before count."""
        now = self.fleet.clock()
        if now - self._joined_s >= ENROLLED_EVERY_S:
            self._joined_s = now
            with contextlib.suppress(StateError):
                self._joined = frozenset(await asyncio.to_thread(self.enrolled))

    def _agent(self, info: AgentInfo, session: AgentSession) -> Json:
        status = "draining" if info.draining else session.shown_status.lower()
        rtt_s = None if info.rtt_s is None else round(info.rtt_s, 4)
        key = status, info.draining, rtt_s, info.streams, info.reason, info.labels, info.gpus
        told = self._agents.get(info.name)
        if told is not None and told.key == key:
            return told.facts
        facts = {
            "status": status,
            "draining": info.draining,
            "rtt_s": rtt_s,
            "streams": info.streams,
            "reason": info.reason or None,
            "labels": dict(info.labels),
            "gpus": {str(gpu.index): facts_of_gpu(gpu) for gpu in info.gpus},
        }
        facts = without_none(facts)
        self._agents[info.name] = _Told(key, facts)
        return facts

    def _deployment(
        self, each: Deployment, stated: DeploymentState | None, gpus: tuple[GpuState, ...]
    ) -> Json:
        health = 0.0 if each.shut else each.health_factor
        said = (0, None, ()) if stated is None else (stated.waiting, stated.kv_use, stated.gpu_indices)
        own_facts = each.slots, each.in_flight, each.usable, health, each.running, each.status, each.version
        life = each.managed, each.closing or each.leaving, each.load_progress
        key = (*own_facts, said, gpus, each.reason, each.device, each.kind, life)
        told = self._deployments.get(each.key)
        if told is not None and told.key == key:
            return told.facts
        indices = () if stated is None else stated.gpu_indices
        own = [gpu for gpu in gpus if not indices or gpu.index in indices]
        used = [gpu.utilisation for gpu in own if gpu.utilisation is not None]
        facts = {
            "agent": each.agent,
            "model": each.model,
            "version": each.version,
            "kind": each.kind or None,
            "device": each.device or None,
            "gpus": ",".join(map(str, indices)) or None,
            "status": each.status.value,
            "usable": each.usable,
            "health": round(health, 3),
            "slots": each.slots,
            "in_flight": each.in_flight,
            "running": each.running,
            "waiting": 0 if stated is None else stated.waiting,
            "kv_use": None if stated is None else stated.kv_use,
            "load_progress": each.load_progress,
            "managed": each.managed or None,
            "leaving": each.closing or each.leaving or None,
            "utilisation": round(sum(used) / len(used), 3) if used else None,
            "temperature_c": max(
                (gpu.temperature_c for gpu in own if gpu.temperature_c is not None), default=None
            ),
            "reason": each.reason or None,
        }
        facts = without_none(facts)
        self._deployments[each.key] = _Told(key, facts)
        return facts

    def _models(self, deployments: Iterable[Json]) -> dict[str, Json]:
        models: dict[str, Json] = {}
        for each in deployments:
            model = models.get(each["model"])
            if model is None:
                model = models[each["model"]] = {"waiting": 0, "slots": 0, "in_flight": 0, "deployments": 0}
            model["slots"] += each["slots"]
            model["in_flight"] += each["in_flight"]
            model["deployments"] += each["usable"]
        now = self.records.clock()
        for name, waiting in self.room.depths().items():
            model = models.setdefault(name, {"slots": 0, "in_flight": 0, "deployments": 0})
            backlog = self.room.backlog(name)
            model["waiting"] = waiting
            model["oldest_s"] = 0.0 if backlog is None else round(max(0.0, now - backlog.oldest_s), 1)
            model["tiers"] = self.room.tiers(name)
        return models


def facts_of_gpu(gpu: GpuState) -> Json:
    """What is known of it. ``asdict`` takes ten times as long."""
    facts: Json = {
        "name": gpu.name,
        "memory_total_bytes": gpu.memory_total_bytes,
        "memory_used_bytes": gpu.memory_used_bytes,
    }
    if gpu.utilisation is not None:
        facts["utilisation"] = gpu.utilisation
    if gpu.temperature_c is not None:
        facts["temperature_c"] = gpu.temperature_c
    if gpu.power_w is not None:
        facts["power_w"] = gpu.power_w
    return facts


def _flow(ended: Iterable[KeptRequest]) -> list[Json]:
    """Of all requests that ended: how many went from which tier to which deployment."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for each in ended:
        facts = each.facts
        tier = "" if facts.tier is None else facts.tier.value
        key = tier, facts.model or "", facts.deployments[-1] if facts.deployments else ""
        counts = found.setdefault(key, [0, 0, 0.0])
        counts[0] += 1
        counts[1] += each.state == "failed"
        counts[2] += facts.queue_s or 0.0
    most = sorted(found.items(), key=lambda item: -item[1][0])[:MOST_FLOWS]
    return [
        {"tier": tier, "model": model, "deployment": deployment, "ended": int(count), "failed": int(failed)}
        | {"queued_s": round(queued_s / count, 4)}
        for (tier, model, deployment), (count, failed, queued_s) in most
    ]


def _tokens(ended: Iterable[KeptRequest]) -> dict[str, list[int]]:
    """Of all requests that ended: the tokens of prompts and of answers, by deployment."""
    found: dict[str, list[int]] = {}
    for each in ended:
        usage, ran = each.facts.usage, each.facts.deployments
        if usage is not None and ran:
            counts = found.setdefault(ran[-1], [0, 0])
            counts[0] += usage.prompt_tokens
            counts[1] += usage.completion_tokens
    return found
