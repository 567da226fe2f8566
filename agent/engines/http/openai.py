"""The backend for every engine with the OpenAI HTTP surface, over TCP or a Unix socket."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import structlog

from agent.engines.backend import (
    BackendBody,
    BackendBusy,
    BackendError,
    BackendFailed,
    BackendRefused,
    BackendRequest,
    BackendTimeout,
    BackendUnreachable,
    ResponseReceiver,
)
from agent.engines.dialects.call import REQUEST_BYTES, TranslatedCall
from agent.engines.dialects.table import DIALECTS
from agent.engines.hang import LifeSigns
from agent.engines.http.client.connections import NoDescriptors
from agent.engines.http.engine_client import EngineClient, SmallResponse
from agent.engines.http.interrupted import InterruptionDetector
from agent.engines.http.kind import GENERIC, TELL_ROUTES, VLLM, EngineKind, WhileBusy
from agent.engines.http.probe import EngineView, Lister, Prober
from agent.engines.http.realtime.websocket import is_translated
from agent.engines.http.states import engine_state, failed
from agent.engines.http.videos import FollowedVideo, VideoRemovals, is_followed
from agent.engines.process import RestartPolicy
from agent.engines.restart import Restarter
from agent.engines.settings import EngineSettings as EngineSettings
from agent.engines.settings import EngineTimeouts as EngineTimeouts
from shared.protocol import limits
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import DeploymentState, DeploymentStatus, RequestHead
from shared.protocol.routes import CONTINUED_ROUTES

log = structlog.get_logger("agent.engine")

GONE_REFRESH_S = 1.0
"""How often an engine that is not there is asked for; a refused connection on this host costs nothing."""

FOREIGN_REFRESH_S = 60.0
"""Where something answers that is no engine it is asked less and less often, down to this."""

BUSY_SILENCE_S = 15.0
"""While requests run, an engine that answers no question is not taken for lost before nothing of any answer
has come for so long. Only engines that are known to answer beside requests are asked then at all."""

_OF_DIALECTS = tuple(DIALECTS)

CONTINUED = frozenset(CONTINUED_ROUTES)
CONTINUES_HINT = (
    "set TRUNKLINE_AGENT_CONTINUES=chat=prefill, or continues in the agent's file, if it goes on with a last "
    "message of the assistant; none if it does not"
)
NO_MODELS = "the engine answers, and lists no models: load one into it"

ERROR_REFRESH_S = 0.2
"""After a failed request the engine is looked at at once, but not more often than this."""


class OpenAIHTTPBackend:
    """Implements :class:`agent.engines.backend.Backend`.

    One task looks at the engine every ``refresh_s``, more often while it is gone, and at once after a request
    failed. Whatever an engine does not offer (health, metrics, facts) is found out once each time it appears.

    While requests run, what comes of their answers is the engine's sign of life. It is asked for its load
    then only if it is known to answer beside requests; a question left unanswered shows that it is busy.
    """

    listed_kind: EngineKind = GENERIC
    """What kind of engine one is whose models :meth:`_lister` lists."""

    def __init__(self, settings: EngineSettings) -> None:
        self.name = settings.name
        self._settings = settings
        self._client = EngineClient(settings)
        self._removals = VideoRemovals(self._client)
        self._prober = Prober(settings, self._ask, self._lister(), self.listed_kind)
        self._view = EngineView()
        self._watch: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None
        """There for an engine with a restart command."""
        self._look = asyncio.Event()
        self._looking = asyncio.Lock()
        self._question = asyncio.Lock()
        """Held while an engine is asked that must not be asked anything else meanwhile."""
        self._running = 0
        self._busy_since_s = 0.0
        """On the loop's clock, when the first of those that run began."""
        self._idle: asyncio.Event | None = None
        """Set when the last request is over; there while that is waited for."""
        self._interrupts = False
        """A request that runs is broken off when the engine is asked something else."""
        self._unanswered = 0
        """Questions in a row that the engine left unanswered, the last ones."""
        self._hangs = ""
        """Why the engine is being restarted; empty: it is not."""
        self._spoken: dict[str, bool] = {}
        """Paths of dialects that it was asked at to find out, and whether it speaks them."""
        self._on_change: Callable[[], None] = lambda: None
        self._on_request_over = self._request_over  # made once, not for every request

    def _lister(self) -> Lister | None:
        """How its models are listed; None: as OpenAI's API does."""
        return None

    async def start(self) -> None:
        """Looks at the engine once, then watches it until :meth:`close`."""
        assert self._watch is None, "started twice"
        await self.refresh()
        self._watch = asyncio.create_task(self._watch_engine(), name=f"watch {self.name}")
        settings = self._settings
        if settings.restart:
            restarts = RestartPolicy(hung_s=settings.hung_s)
            restarter = Restarter(self, settings.restart, restarts, self.still_s, settings.ready_s)
            self._restarting = asyncio.create_task(restarter.run(), name=f"restart {self.name}")

    async def close(self) -> None:
        tasks = [task for task in (self._watch, self._restarting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._removals.close()
        await self._client.close()

    def deployments(self) -> tuple[DeploymentState, ...]:
        if self._hangs:
            return failed(self._view.deployments, self._hangs)
        return self._view.deployments

    def engine(self) -> EngineState:
        view = self._view
        if self._hangs:
            return EngineState(self.name, DeploymentStatus.FAILED, self._hangs, view.kind.name)
        kind = "" if view.gone and not view.deployments else view.kind.name  # not known before it was there
        if view.gone:
            status = DeploymentStatus.LOADING if view.loading else DeploymentStatus.FAILED
            return EngineState(self.name, status, view.reason, kind)
        wanted = ", ".join(self._settings.models)
        without = f"the engine lists none of the models named for it ({wanted})" if wanted else NO_MODELS
        return engine_state(self.name, view.deployments, kind=kind, without=without)

    @property
    def kind(self) -> str:
        """What kind of engine it is found to be: ``vllm``, ``ollama``, …, ``generic``."""
        return self._view.kind.name

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    async def refresh(self) -> None:
        """Look at the engine now, outside the rhythm: after it was seen to start or to fail."""
        async with self._looking:
            before, engine = self._view, self.engine()
            if before.gone:
                self._spoken.clear()
            unspoken = frozenset(DIALECTS[path].need for path, speaks in self._spoken.items() if not speaks)
            self._view = await self._prober.look(replace(before, unspoken=unspoken))
            self._interrupts = self._view.while_busy is WhileBusy.INTERRUPTS
        for model, why in set(self._view.left_out).difference(before.left_out):
            log.warning("model left out", engine=self.name, model=model, reason=why)
        if self._view.deployments != before.deployments:
            self._log_change(before)
            self._on_change()
        elif self.engine() != engine:
            self._on_change()

    def request(self, head: RequestHead, body: BackendBody, receiver: ResponseReceiver) -> BackendRequest:
        """See :meth:`agent.engines.backend.Backend.request`."""
        translated = self._translated(head, body, receiver) if head.path.startswith(_OF_DIALECTS) else None
        return translated or self._send(head, body, receiver)

    def _translated(
        self, head: RequestHead, body: BackendBody, receiver: ResponseReceiver
    ) -> BackendRequest | None:
        """The request in another dialect, if its engine does not speak the request's own, or may not; None:
        it does. Whether an engine does that does not say so shows when it is asked."""
        path = head.path.partition("?")[0]
        dialect = DIALECTS.get(path)
        if dialect is None or head.method != "POST":
            return None
        view, need = self._view, dialect.need
        if need in view.translated.get(head.deployment, ()) or self._spoken.get(path) is False:
            return TranslatedCall(dialect, head, body, receiver, self._send)
        certain = view.offers is not None or view.kind in TELL_ROUTES or path in self._spoken
        lengths = [text for name, text in head.headers if name.lower() == "content-length"]
        if certain or len(lengths) != 1 or not lengths[0].isdecimal() or int(lengths[0]) > REQUEST_BYTES:
            return None
        return TranslatedCall(
            dialect, head, body, receiver, self._send, lambda speaks: self._found(path, speaks)
        )

    def _found(self, path: str, speaks: bool) -> None:
        """A request showed whether the engine speaks the dialect at ``path``."""
        self._spoken[path] = speaks
        if not speaks:
            self._look.set()  # what is translated goes on elsewhere as a chat does, which the gateway is told

    def _send(self, head: RequestHead, body: BackendBody, receiver: ResponseReceiver) -> BackendRequest:
        after = None
        if self._interrupts:
            receiver = InterruptionDetector(receiver)
            after = self._question_answered if self._question.locked() else None
        self._began()
        try:
            if not self._interrupts and is_followed(head):
                video = FollowedVideo(self._client, self._removals, receiver, self._on_request_over)
                return video.begin(head, body, after)
            realtime = head.upgrade and self._view.kind is VLLM and is_translated(head)
            return self._client.request(head, body, receiver, self._on_request_over, after, realtime=realtime)
        except BackendRefused as refusal:
            self._request_over(refusal)
            raise

    def _began(self) -> None:
        if not self._running:
            self._busy_since_s = asyncio.get_running_loop().time()
        self._running += 1

    def _request_over(self, error: Exception | None) -> None:
        self._running -= 1
        if self._idle is not None and not self._running:
            self._idle.set()
        if error is not None and isinstance(error, BackendError) and not isinstance(error, BackendRefused):
            self._look.set()

    @property
    def still_s(self) -> float | None:
        """So long its requests may be silent; None: for ever."""
        return self._settings.timeouts.still_s

    def life_signs(self) -> LifeSigns:
        """Whether the engine answers, as far as is known now."""
        client = self._client
        return LifeSigns(client.heard_s, self._unanswered, client.running, client.worked_s)

    def serves(self) -> bool:
        """The engine answered the last look in order."""
        return not self._view.gone and any(
            d.status is not DeploymentStatus.FAILED for d in self._view.deployments
        )

    def begin_restart(self, reason: str) -> None:
        """The engine is restarted because of ``reason``: until :meth:`end_restart` its deployments are
        failed. What it works on is given up, so that the gateway has other engines do it."""
        self._hangs = reason[: limits.REASON_CHARS]
        self._on_change()
        self._client.fail_all(BackendFailed(reason))

    async def end_restart(self) -> None:
        """Looks at the engine, and offers what it serves."""
        await self.refresh()
        self._hangs, self._unanswered = "", 0
        self._on_change()

    async def _question_answered(self) -> None:
        """The question that is under way has its answer."""
        async with self._question:
            pass

    @property
    def _may_be_asked(self) -> bool:
        return not self._running or self._view.while_busy is WhileBusy.ANSWERS

    async def _ask(self, path: str, method: str = "GET", body: bytes = b"") -> SmallResponse:
        """One question. Raises :class:`BackendBusy`, and what :meth:`EngineClient.ask` raises."""
        if not self._may_be_asked:
            raise BackendBusy("requests run")
        try:
            async with self._question if self._interrupts else nullcontext():
                answer = await self._client.ask(path, method, body)
                self._unanswered = 0
                return answer
        except NoDescriptors:
            raise
        except (BackendFailed, BackendUnreachable):
            self._unanswered += 1
            raise
        except BackendTimeout:
            self._unanswered += 1
            heard_s = max(self._client.heard_s, self._busy_since_s)
            if self._running and asyncio.get_running_loop().time() - heard_s < BUSY_SILENCE_S:
                raise BackendBusy("it works on requests") from None
            raise

    async def _watch_engine(self) -> None:
        foreign = 0
        while True:
            foreign = foreign + 1 if self._view.foreign else 0
            try:
                async with asyncio.timeout(self._rest_s(foreign)):
                    await self._look.wait()
            except TimeoutError:
                pass
            if not self._may_be_asked:
                self._idle = asyncio.Event()
                await self._idle.wait()
                self._idle = None
            self._look.clear()
            try:
                await self.refresh()
            except Exception:
                log.exception("looking at the engine failed", engine=self.name)
            await asyncio.sleep(ERROR_REFRESH_S)

    def _rest_s(self, foreign: int) -> float:
        """Until the next look, after so many in a row at something that is no engine."""
        if not self._view.gone:
            return self._settings.refresh_s
        rest_s = min(self._settings.refresh_s, GONE_REFRESH_S)
        return min(FOREIGN_REFRESH_S, rest_s * 2.0 ** min(foreign, 30))

    def _log_unknown_continuation(self) -> None:
        """An operator may know more of the engine than is known of its kind."""
        serving = [d for d in self._view.deployments if d.status is DeploymentStatus.LOADED]
        unknown = any(not d.continues and CONTINUED.intersection(d.routes) for d in serving)
        if unknown and self._settings.continues is None:
            log.info(
                "this engine is not known to continue answers that another engine began",
                engine=self.name,
                kind=self.kind,
                hint=CONTINUES_HINT,
            )

    def _log_change(self, before: EngineView) -> None:
        now = self._view
        if now.gone and not before.gone:
            log.warning("engine lost", engine=self.name, reason=now.reason)
        elif before.models() != now.models():
            log.info("engine serves", engine=self.name, kind=now.kind.name, models=list(now.models()))
            self._log_unknown_continuation()
        for deployment in now.deployments:
            if deployment.reason and deployment.reason != before.reason_of(deployment.id) and not now.gone:
                why = deployment.reason
                log.warning("deployment", id=deployment.id, status=deployment.status, reason=why)
