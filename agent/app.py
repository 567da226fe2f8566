"""The agent put together: engines on one side, the tunnel on the other, and an orderly end."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from agent.capacity.device import GpuSampler
from agent.capacity.engine_registry import EngineRegistry
from agent.capacity.load_times import FILE as LOAD_TIMES_FILE
from agent.capacity.load_times import LoadTimes
from agent.capacity.model_memory import ModelMemory
from agent.config.config import AgentConfig, EngineConfig
from agent.engines.backend import Backend
from agent.engines.comfyui.backend import ComfyUIBackend
from agent.engines.comfyui.own_paths import ComfyUIPaths
from agent.engines.command.engine import CommandBackend
from agent.engines.finder import NO_ENGINE, Finder
from agent.engines.managed import Durations
from agent.engines.speaking import BACKENDS
from agent.requests.runner import RequestRunner
from agent.requests.tracing import EngineTracing
from agent.stopping import Stop, close_all, first_of, listen_for_signals
from shared.link.command_fence import CommandFence
from shared.link.dialer import Dial, Rejected, dial_with
from shared.link.membership import Membership, MembershipError, default_name
from shared.link.processes import GatewayProcesses
from shared.link.publisher import TICK_S, Publisher, Publishers
from shared.link.session import GatewaySession
from shared.link.state_directory import locked_state_directory
from shared.process.connection_errors import host_of
from shared.process.settings import ConfigError
from shared.process.startup import raise_file_limit
from shared.process.tracing.export import span_exporter
from shared.process.tracing.settings import check_installed
from shared.process.watchdog import watched_loop
from shared.protocol.errors import TrunklineError
from shared.protocol.peers import PROGRESS
from shared.speedups import collapse_pages

log = structlog.get_logger("agent")

GPU_SAMPLE_S = 1.0
"""How often GPUs are read. A STATE has the newest figures (:mod:`shared.link.publisher`)."""

SERVICE = "trunkline-agent"
"""The agent's name in traces."""

LAST_SPANS_S = 2.0
"""For the last spans, when the agent stops."""

DRAIN_LOG_S = 5.0
"""How often a drain says how much still runs."""

CUT_OFF_S = 1.0
"""For engines to let go of requests that are cut off, and for the gateway to hear of it."""

CLOSE_FLUSH_S = 0.2
"""For the last bytes and CLOSE to leave the socket before the process ends."""


BLOCKED_S = 1.0
"""The loop counts as blocked after so long without a turn. A stream of tokens suffers from less."""

BLOCKED_QUIET_S = 60.0
"""After a warning that the loop was blocked, further episodes are only counted for so long."""


class Agent:
    """One agent. Use :meth:`run` once."""

    def __init__(self, config: AgentConfig, stop: Stop, dial_gateway: Dial | None = None) -> None:
        self._config = config
        self._stop = stop
        self._settings = config.dial_settings()
        self._dial_gateway = dial_gateway
        self._gpus = GpuSampler(GPU_SAMPLE_S)
        self._gpu_memory_bytes: int | None = None
        self._registry = EngineRegistry(room=ModelMemory(self._model_memory_bytes))
        if config.engines:
            self._registry.without_engines = "its engines are being looked at for the first time"
        elif config.looks_for_engines:
            self._registry.without_engines = NO_ENGINE
        self._publishers = Publishers(
            self._registry, lambda: Publisher(self._registry, lambda: self._gpus.latest, labels=config.labels)
        )
        self._opened: list[Backend] = []
        self._durations = LoadTimes(config.state / LOAD_TIMES_FILE)
        check_installed(config.otel)
        self._spans = span_exporter(config.otel, SERVICE)

    async def run(self) -> None:
        """Returns when it was asked to stop. Raises Rejected or MembershipError when it cannot go on, and
        ConfigError for an engine that can never work."""
        config = self._config
        backends = [each for engine in config.engines for each in make_backends(engine, self._durations)]
        join = None if config.join is None else config.join.get_secret_value()
        with locked_state_directory(config.state):
            membership = Membership.open(
                config.state,
                join=join,
                name=config.name,
                default_name=default_name(),
                optional=(PROGRESS,),
            )
            self._log_start(membership)
            self._gpus.start()
            if self._spans is not None:
                self._spans.start()
            try:
                with watched_loop(BlockedLoopLog(), BLOCKED_S):
                    await self._run(membership, backends)
            finally:
                await close_all(self._opened, self._stop)
                self._gpus.stop()
                if self._spans is not None:
                    await asyncio.to_thread(self._spans.stop, LAST_SPANS_S)

    async def _run(self, membership: Membership, backends: list[Backend]) -> None:
        failure: TrunklineError | None = None
        async with asyncio.TaskGroup() as tasks:
            tracing = None if self._spans is None else EngineTracing(self._spans)
            runner = RequestRunner(self._registry, tracing=tracing)
            fence = CommandFence(self._registry.carry_out)

            def new_sessions() -> tuple[Callable[[], GatewaySession], Callable[[], None]]:
                publisher, registry = self._publishers.make(), self._registry

                def new_session() -> GatewaySession:
                    return GatewaySession(
                        runner,
                        publisher,
                        fence.carry_out,
                        membership.renew,
                        registry.slots,
                        runner.others,
                    )

                return new_session, lambda: self._publishers.drop(publisher)

            gateway = GatewayProcesses(membership, new_sessions, self._dial_at)
            services: list[asyncio.Task[Any]] = [tasks.create_task(self._open(each)) for each in backends]
            services.append(tasks.create_task(self._tick()))
            if self._config.looks_for_engines:
                services.append(tasks.create_task(Finder(self._found, self._config.usual_ports).run()))
            dialling = tasks.create_task(_failure_of(gateway))
            services.append(dialling)
            try:
                await first_of(self._stop.asked, dialling)
                if dialling.done():
                    failure = dialling.result()
                else:
                    await self._drain(gateway, runner)
            finally:
                runner.cut_off()
                for service in services:
                    service.cancel()
        if failure is not None:
            raise failure

    def _dial_at(self, process: str | None, address: str | None) -> Dial:
        if self._dial_gateway is not None:
            return self._dial_gateway
        settings = self._settings if address is None else self._config.peer_dial_settings(address)
        if process is not None:
            settings = replace(settings, url=f"{settings.url}/{process}")
        return dial_with(settings, time.monotonic)

    def _model_memory_bytes(self) -> int | None:
        """What there is for models; of GPUs that cannot be read just now, what they had."""
        if self._config.models.memory is not None:
            return self._config.models.memory
        if gpus := self._gpus.latest:
            self._gpu_memory_bytes = sum(gpu.memory_total_bytes for gpu in gpus) or None
        return self._gpu_memory_bytes

    async def _drain(self, gateway: GatewayProcesses, runner: RequestRunner) -> None:
        """Let what runs finish, take nothing new, then leave."""
        drain_s = self._config.drain_s
        log.info(
            "draining, a second signal ends it at once", running=self._registry.running, at_most_s=drain_s
        )
        self._registry.drain()
        gateway.drain("the agent is stopping", drain_s)
        idle = asyncio.ensure_future(runner.idle())
        try:
            await self._wait_for(idle, drain_s)
            if self._registry.running:
                log.warning("requests cut off, the gateway moves them", running=self._registry.running)
                runner.cut_off()
                await asyncio.wait({idle}, timeout=CUT_OFF_S)
        finally:
            idle.cancel()
        gateway.close("the agent stopped")
        await asyncio.sleep(CLOSE_FLUSH_S)
        log.info("stopped")

    async def _wait_for(self, idle: asyncio.Future[Any], most_s: float) -> None:
        """Until nothing runs, ``most_s`` are over or the agent is to end at once."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + most_s
        while (left_s := until_s - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(left_s, DRAIN_LOG_S)):
                    await first_of(self._stop.at_once, idle)
                return
            except TimeoutError:
                if left_s > DRAIN_LOG_S:
                    more_s = round(left_s - DRAIN_LOG_S)
                    log.info("still draining", running=self._registry.running, at_most_s=more_s)

    async def _open(self, backend: Backend) -> None:
        self._opened.append(backend)
        await backend.start()
        self._registry.add(backend)

    async def _found(self, url: str, name: str) -> None:
        if any(engine.name == name for engine in self._config.engines):
            name = f"found-{name}"
        log.info("engine found", engine=name, url=url)
        protocol, _, place = url.partition(":") if url.startswith("comfyui:") else ("openai", "", url)
        found: dict[str, Any] = {"url": place, "name": name, "protocol": protocol}
        if protocol == "comfyui":
            found |= {"slots": None}  # those that are said for found engines are of servers that batch
        engine = self._config.found_engine.model_copy(update=found)
        for backend in make_backends(engine, self._durations):
            await self._open(backend)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._publishers.tick()

    def _log_start(self, membership: Membership) -> None:
        config = self._config
        log.info(
            "agent starts",
            name=membership.name,
            gateway=config.gateway,
            state=str(config.state),
            engines=[engine.place for engine in config.engines],
        )
        if membership.has_spare_token:
            log.info("the join token is not needed: this agent has joined already")
        if self._settings.proxy is not None:
            log.info("dialling through a proxy", proxy=host_of(self._settings.proxy))


def make_backends(engine: EngineConfig, durations: Durations) -> tuple[Backend, ...]:
    """What serves ``engine``. Raises as :func:`make_backend`."""
    backend = make_backend(engine, durations)
    own_paths = not engine.models or engine.name in engine.models
    if isinstance(backend, ComfyUIBackend) and own_paths:
        return backend, ComfyUIPaths(engine.settings(), backend)
    return (backend,)


def make_backend(engine: EngineConfig, durations: Durations) -> Backend:
    """Raises :class:`ConfigError` for a model directory or a device that can never work."""
    if engine.command is not None:
        if sys.platform == "win32":
            raise ConfigError(f"engine {engine.name}: command: not on Windows")
        return CommandBackend(
            engine.settings(),
            engine.command_settings(),
            loading=engine.loading(),
            restarts=engine.restarts(),
            durations=durations,
        )
    if engine.python is not None:
        return _python_backend(engine, engine.python, durations)
    if engine.url is not None:
        return BACKENDS[engine.protocol](engine.settings())
    assert engine.torch is not None  # as its settings were checked
    from agent.engines.torch.backend import TorchBackend
    from agent.engines.torch.startup import NOT_INSTALLED, is_installed

    if not is_installed():
        raise ConfigError(NOT_INSTALLED)
    try:
        return TorchBackend(
            engine.torch,
            name=engine.name,
            slots=engine.slots,
            device=engine.device,
            version=engine.version,
            continues=engine.continues,
            loading=engine.loading(),
            restarts=engine.restarts(),
            durations=durations,
        )
    except ValueError as error:
        raise ConfigError(f"engine {engine.name}: torch = {engine.torch!r}: {error}") from error


def _python_backend(engine: EngineConfig, spec: str, durations: Durations) -> Backend:
    """Raises :class:`ConfigError` when there is no such module; the class is looked for in a process of its
    own."""
    from agent.serve.backend import PythonBackend
    from agent.serve.locate import find_module

    if sys.platform == "win32":
        raise ConfigError(f"engine {engine.name}: python: not on Windows")
    try:
        find_module(spec, os.getcwd())
    except ValueError as error:
        raise ConfigError(f"--python {spec}: {error}") from error
    return PythonBackend(
        engine.python_settings(),
        name=engine.name,
        models=engine.models,
        slots=engine.slots,
        version=engine.version,
        loading=engine.loading(),
        restarts=engine.restarts(),
        durations=durations,
    )


class BlockedLoopLog:
    """Warns of episodes once they are over; of those soon after a warning together with the next one.
    Implements :class:`shared.process.watchdog.BlockedLoopReporter`."""

    def __init__(self) -> None:
        self._warned_s = float("-inf")
        self._times = 0
        self._longest_s = 0.0

    def loop_blocked(self, now: float, stack: Callable[[], list[str]]) -> None:
        """Nothing is logged before it is over."""

    def loop_turns(self, now: float, lasted_s: float) -> None:
        self._times += 1
        self._longest_s = max(self._longest_s, lasted_s)

    process_stood_still = loop_turns

    def looked(self, now: float) -> None:
        if self._times and now - self._warned_s >= BLOCKED_QUIET_S:
            log.warning("the event loop was blocked", times=self._times, longest_s=round(self._longest_s, 1))
            self._warned_s, self._times, self._longest_s = now, 0, 0.0


async def _failure_of(gateway: GatewayProcesses) -> TrunklineError | None:
    """Dials the gateway; gives what that failed with instead of raising it into the task group."""
    try:
        await gateway.run()
    except (Rejected, MembershipError) as error:
        return error
    return None


async def serve(config: AgentConfig) -> None:
    """Run an agent until a signal ends it. Raises what :meth:`Agent.run` raises."""
    raise_file_limit()
    collapse_pages()
    stop = Stop()
    listen_for_signals(stop.ask)
    await Agent(config, stop).run()
