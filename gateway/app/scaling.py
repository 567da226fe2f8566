"""What of scaling a gateway is made of, and the slices of the settings that each part gets."""

import asyncio
import importlib.util
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gateway.api.admin.fleet import usable_answers
from gateway.api.admin.scaling import ScalingAdmin
from gateway.app.process_reads import ProcessReads
from gateway.cluster.ownership import Ownership
from gateway.dispatch.dispatcher import Dispatcher
from gateway.domain.slices import run_in_slices
from gateway.jobs.webhooks.guard import WebhookGuard
from gateway.jobs.webhooks.sender import WebhookSender
from gateway.observability.gauges import FamilyCollector
from gateway.runtime.config import ConfigError, Settings
from gateway.runtime.config.scaling import ScalingModelTable, ScalingTable
from gateway.scaling.autoscaler import Autoscaler
from gateway.scaling.calendar_file import CalendarFile
from gateway.scaling.forecaster import Forecaster, ForecasterSettings
from gateway.scaling.foresight import Foresight
from gateway.scaling.history import LoadHistory
from gateway.scaling.hooks import HookSettings, ScalingHooks
from gateway.scaling.observation import SeenModel, from_json, merge, observe, to_json
from gateway.scaling.settings import ClassSettings, ModelSettings, ScalingSettings
from gateway.scheduling.scaling.data import ScalingRule
from gateway.storage import Store
from gateway.storage.webhooks.secrets import OPERATOR

if TYPE_CHECKING:
    from gateway.scaling.keda.server import KedaScaler

QUESTION = "scaling"


class ScalingParts:
    """Of one process."""

    def __init__(
        self,
        settings: Settings,
        dispatcher: Dispatcher,
        reads: ProcessReads | None,
        store: Store,
        ownership: Ownership,
        *,
        first: bool = True,
    ) -> None:
        """``first``: this is the first of several workers. Raises ConfigError."""
        table = settings.scaling
        self._enabled = table.enabled
        self._dispatcher = dispatcher
        self._reads = reads
        chosen = scaling_settings(table, settings.queue.max_wait_s)
        performance, clock = dispatcher.scheduling.scheduler.performance, dispatcher.timers.time
        metrics = dispatcher.metrics
        self._foresight = Foresight(time.time, LoadHistory(table.interval_s), may_act=table.forecast == "act")
        self._foresight.off = why_off(table)
        self.scaler = Autoscaler(chosen, self._see, performance, clock, metrics.know_model, self._foresight)
        self._forecaster = _forecaster(table, self._foresight, store, ownership)
        self.admin = ScalingAdmin(self.scaler, dispatcher.index)
        if reads is not None:
            reads.answer(QUESTION, self._answer)
        if table.enabled:
            dispatcher.admission.held_s = chosen.held_s
            FamilyCollector(metrics.registry, self.scaler.figures)
        self._hooks = _hooks(settings, store, ownership)
        if self._hooks is not None:
            self.scaler.on_change.append(self._hooks.changed)
        self._keda = _keda(table, self.scaler) if first else None

    async def run(self) -> None:
        """Decide, and tell, until this is cancelled."""
        if self._enabled:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forecaster.run())
                tasks.create_task(self.scaler.run())
                for part in (self._hooks, self._keda):
                    if part is not None:
                        tasks.create_task(part.run())
                if self._hooks is not None:
                    tasks.create_task(self._watch(self._hooks))

    async def _watch(self, hooks: ScalingHooks) -> None:
        async for verdicts in self.scaler.decisions():
            hooks.decided(verdicts)

    async def _see(self) -> dict[str, SeenModel]:
        own = await self._see_here()
        if self._reads is None:
            return own
        answers = usable_answers(await self._reads.ask_all(QUESTION), from_json)
        return merge([own, *map(from_json, answers.found.values())])

    async def _see_here(self) -> dict[str, SeenModel]:
        return await run_in_slices(observe(self._dispatcher, self._dispatcher.timers.time()))

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        return to_json(await self._see_here())


def _forecaster(table: ScalingTable, foresight: Foresight, store: Store, ownership: Ownership) -> Forecaster:
    names = ("quantile", "extra", "weeks", "every_s", "backtest_days")
    settings = ForecasterSettings(**{name: getattr(table, f"forecast_{name}") for name in names})
    calendar = None if table.calendar is None else CalendarFile(table.calendar)
    return Forecaster(settings, foresight, store.scaling_history, lambda: ownership.owns, calendar)


def why_off(table: ScalingTable) -> str | None:
    """Why nothing is forecast; None: it is."""
    if table.forecast == "off":
        return "scaling.forecast is off"
    if importlib.util.find_spec("numpy") is None:
        return "numpy is not installed: pip install 'trunkline[forecast]'"
    return None


def _hooks(settings: Settings, store: Store, ownership: Ownership) -> ScalingHooks | None:
    """None: nobody is to be told."""
    table, jobs = settings.scaling, settings.jobs
    if not table.command and table.webhook is None:
        return None
    guard = WebhookGuard(replace(jobs.webhook_rules, own=None))
    return ScalingHooks(
        HookSettings(tuple(table.command), table.webhook, table.hook_timeout_s),
        lambda: ownership.owns,
        WebhookSender(guard, jobs.webhook_ca_file),
        lambda at_s: store.webhook_secrets.signers(OPERATOR, at_s),
    )


def _keda(table: ScalingTable, scaler: Autoscaler) -> "KedaScaler | None":
    """None: KEDA is not answered. Raises ConfigError."""
    if table.keda_listen is None or not table.enabled:
        return None
    try:
        from gateway.scaling.keda.server import KedaScaler, KedaSettings, KedaUnusable
    except ImportError as error:
        raise ConfigError(f"scaling.keda_listen: pip install 'trunkline[keda]' ({error})") from error
    files = (table.keda_cert, table.keda_key, table.keda_client_ca, table.keda_token_file)
    try:
        return KedaScaler(KedaSettings(table.keda_listen, *files), scaler)
    except KedaUnusable as error:
        raise ConfigError(f"scaling: {error}") from error


def scaling_settings(table: ScalingTable, max_wait_s: float) -> ScalingSettings:
    """As the autoscaler reads them. A request waits ``max_wait_s`` at most."""
    names = ("first_token_s", "latency_s", "utilisation", "queue_s", "batch_queue_s", "min_replicas")
    more = ("max_replicas", "stabilisation_s", "cooldown_s", "idle_s")
    of_all = {name: getattr(table, name) for name in (*names, *more)}

    def rule(model: ScalingModelTable) -> ScalingRule:
        own = model.model_dump(exclude={"classes"}, exclude_none=True)
        return ScalingRule(**(of_all | own), most_wait_s=max_wait_s)

    return ScalingSettings(
        ScalingRule(**of_all, most_wait_s=max_wait_s),
        {name: ClassSettings(**each.model_dump()) for name, each in table.classes.items()},
        [ModelSettings(name, rule(each), each.classes) for name, each in table.models.items()],
        table.interval_s,
        table.hold_s,
        table.ready_s,
    )
