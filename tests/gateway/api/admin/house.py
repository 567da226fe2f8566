"""A gateway over a store and a fleet under a manual clock, whose admin API is asked over raw ASGI."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import update

from gateway.api.admin.about import AboutAdmin
from gateway.api.admin.bodies import MODELS
from gateway.api.admin.diagnosis import DiagnosisAdmin
from gateway.api.admin.fleet import FleetAdmin
from gateway.api.admin.jobs import JobsAdmin
from gateway.api.admin.models import ModelsAdmin
from gateway.api.admin.requests import RequestsAdmin
from gateway.api.admin.resources.table import OPERATIONS
from gateway.api.admin.routes import AdminMethod, admin_pages
from gateway.api.admin.scaling import ScalingAdmin
from gateway.api.admin.store import StoreAdmin
from gateway.api.admin.whatif import WhatIfAdmin
from gateway.api.admin.whatif_child import WhatIfRunner, WhatIfTask
from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.inbound import BodyLimits
from gateway.api.exchange.middleware import RequestMiddleware
from gateway.api.jobs.pages import jobs_pages
from gateway.api.jobs.responses import responses_pages
from gateway.api.jobs.videos import videos_pages
from gateway.api.openai.batches import batches_pages
from gateway.api.openai.files import files_pages
from gateway.api.openai.handlers import KeyedPage
from gateway.api.openai.uploads import uploads_pages
from gateway.api.routes import build_router
from gateway.auth.keys import KeyRing
from gateway.domain.errors import RequestError
from gateway.domain.scopes import AdminRole
from gateway.domain.slices import run_at_once
from gateway.domain.webhooks import DeliveryState, WebhookEvent
from gateway.jobs.batches.result_lines import FinishedLines, ResultLines
from gateway.jobs.batches.service import BatchService
from gateway.jobs.files import FileService
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.uploads import UploadService
from gateway.pipeline.pipeline import Pipeline
from gateway.runtime.lifecycle import Lifecycle
from gateway.scaling.autoscaler import Autoscaler
from gateway.scaling.observation import SeenModel, observe
from gateway.scaling.settings import ScalingSettings
from gateway.storage import Enrolment, Store, schema
from gateway.storage.objects import ObjectStore
from gateway.storage.webhooks.events import note_events
from tests.gateway.api.calls import Call
from tests.gateway.api.jobs.access import accept_webhook, job_access
from tests.gateway.api.support import JSON_TYPE, MIB, FakeCatalog, FakeDispatcher, FakeMetrics
from tests.gateway.dispatch.decisions.kept import records
from tests.gateway.fleet.fleet import Fleet

BODIES = {name: model for name, model in MODELS.items() if not OPERATIONS[name].query}
QUERIES = {name: model for name, model in MODELS.items() if OPERATIONS[name].query}
"""The models of what operations take, by their names."""

NOW_S = 1000.0

SETTING = {
    "path": "store.url",
    "value": "postgresql://ada:secret@db/trunkline",
    "set": True,
    "changeable": False,
}

NEW_KEY = {"name": "ci", "models": ["llama-*"], "tiers": ["batch"], "role": "viewer", "life_s": 60, "rpm": 5}


FLEET = {
    "deployments": [{"key": "a/1", "model": "m", "device": "l4", "slots": 4}],
    **{"speeds": [], "policy": "cost", "policies": {}, "gpu_hour": {"m": 2.0}, "elsewhere": []},
    "queue": {"max_requests": 10, "max_wait_s": 5.0, "ageing_s": 20.0, "weights": {}},
}
"""For what-ifs, as a gateway tells it."""


class ToldRunner(WhatIfRunner):
    """Says what it was told to say, without a process."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        object.__setattr__(self, "lines", [{"progress": {"done": 1, "of": 2}}, {"result": {"requests": 2}}])
        object.__setattr__(self, "tasks", [])

    lines: list[dict[str, Any] | RequestError]
    tasks: list[WhatIfTask]

    async def run(self, task: WhatIfTask) -> AsyncGenerator[dict[str, Any]]:
        self.tasks.append(task)
        for each in self.lines:
            if isinstance(each, RequestError):
                raise each
            yield each


def scaler(fleet: Fleet) -> Autoscaler:
    """Decides by what this process sees."""
    dispatcher = fleet.dispatcher

    async def see() -> Mapping[str, SeenModel]:
        return run_at_once(observe(dispatcher, dispatcher.timers.time()))

    return Autoscaler(
        ScalingSettings(), see, dispatcher.scheduling.scheduler.performance, dispatcher.timers.time
    )


class House:
    """A store, a fleet under a manual clock, and the surface over them."""

    def __init__(self, directory: Path, fleet: Fleet | None = None) -> None:
        """``fleet`` None: one that loads no models."""
        self.store = Store.open(directory)
        self.fleet = fleet or Fleet()
        self.depths = {"m": 3, "n": 1}
        self.ring = KeyRing(self.store, lambda: NOW_S)
        self.failures: list[RequestError | None] = []
        clock, index = self.fleet.registry.clock, self.fleet.registry.index
        self.stored = StoreAdmin(self.store, lambda: index.models, lambda: NOW_S)
        fleet_admin = FleetAdmin(
            self.fleet.registry,
            self.store.agents,
            lambda: self.depths,
            clock,
            apply=partial(follow_holds, self.fleet, self.store),
        )
        about = AboutAdmin(lambda: {"process": "gateway", "version": "1.2.3"}, lambda: [SETTING])
        self.records = records(recent=100)
        asked = RequestsAdmin(self.records, "p-1")
        settings, lifecycle = HttpSettings(), Lifecycle()
        self.doctor = DiagnosisAdmin("1.2.3", BodyLimits(body_bytes=2 * MIB), 15.0, lambda: NOW_S)
        registry, loads = self.fleet.registry, self.fleet.dispatcher.loads
        models = ModelsAdmin(
            registry.index, loads, self.store.acts, lambda model: self.depths.get(model, 0), clock
        )
        self.runner = ToldRunner(directory)
        whatif = WhatIfAdmin(lambda: FLEET, self.records, None, self.runner, 100, lambda: NOW_S)
        self.scaling = ScalingAdmin(scaler(self.fleet), registry.index)
        of_process = [
            *self.scaling.methods(),
            *models.methods(),
            *whatif.methods(),
            *asked.methods(),
            *about.methods(),
            *self.doctor.methods(),
        ]
        methods: list[AdminMethod] = [*fleet_admin.methods(), *of_process, *self.stored.methods()]
        pipeline = Pipeline(self.ring, FakeDispatcher().run)
        jobs_methods, files = self._jobs(directory)
        methods += jobs_methods
        admin = self.pages = admin_pages(self.ring, methods)
        router = build_router(
            pipeline,
            self.ring,
            FakeCatalog(),
            FakeMetrics(),
            lifecycle,
            settings,
            admin,
            files=files,
        )
        self.router = router
        self.app = RequestMiddleware(router, settings, BufferBudget(MIB), lifecycle, lambda *facts: None)
        lifecycle.serve()
        self.keys = {role: self.store.keys.create(f"its-{role}", "ops", 1.0, role=role) for role in AdminRole}
        self.keys[None] = self.store.keys.create("its-none", "ops", 1.0)  # type: ignore[index]

    def _jobs(self, directory: Path) -> tuple[list[AdminMethod], dict[str, KeyedPage]]:
        """What administers jobs, and the pages of clients' files, batches and jobs."""
        kept = FileService(
            self.store.files, ObjectOpener(lambda: ObjectStore.in_directory(directory / "objects"))
        )
        uploads = UploadService(self.store.uploads, self.store.files, kept)
        finished = FinishedLines(self.store.jobs, ResultLines(kept.objects), kept.wall)
        batches = BatchService(self.store.batches, lambda: None, kept.wall, finished)
        jobs = job_access(self.store, directory / "objects")
        admin = JobsAdmin(jobs.service, batches, lambda name: None, self.ring.name_of)
        files: dict[str, KeyedPage] = {
            **files_pages(self.ring, kept),
            **uploads_pages(self.ring, uploads),
            **batches_pages(self.ring, batches, accept_webhook),
            **jobs_pages(self.ring, jobs),
            **responses_pages(self.ring, jobs),
            **videos_pages(self.ring, jobs, lambda name: True),
        }
        return admin.methods(), files

    def offer(self, methods: Iterable[AdminMethod]) -> None:
        """Have these answer in place of those of the same paths."""
        for each in methods:
            self.pages[each.path].methods[each.method] = each

    async def ask(
        self,
        method: str,
        path: str,
        role: AdminRole | None = AdminRole.ADMIN,
        body: object = None,
        **more: Any,
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Status, the JSON in the answer, and its headers."""
        data = more.get("raw", b"" if body is None else orjson.dumps(body))
        headers = more.get("headers", (JSON_TYPE,))
        bearer = (b"authorization", b"Bearer " + self.keys[role].encode())  # type: ignore[index]
        call = Call(self.app, method, path, (*headers, bearer), query=more.get("query", b""))
        call.body(data)
        await call.done(more.get("within_s", 5))
        return call.status, orjson.loads(call.content), call.headers


async def follow_holds(fleet: Fleet, store: Store) -> None:
    """As the endpoint of agents does when the store has changed."""
    for session in fleet.registry.sessions:
        record = store.agents.get(session.principal.name)
        held = record is not None and record.held_s is not None
        fleet.registry.allow(session, replace(session.principal, held=held))


def enrol(store: Store, name: str) -> None:
    token, _ = store.tokens.create(3600, 1, ["llama-*"], {"region": "eu"}, 1.0)
    store.agents.enrol(Enrolment(token.id_text, name, name.encode().ljust(32), name, 4e9), 2.0)


def note_failed_delivery(store: Store) -> None:
    """One of a webhook, with the id evt_1."""
    event = WebhookEvent("acme", "job_1", "job.failed", "https://a.example/")
    with store.database.write() as connection:
        note_events(connection, [event], 1.0)
        values = {"id": "evt_1", "state": DeliveryState.FAILED.value}
        connection.execute(update(schema.webhook_deliveries).values(values))
