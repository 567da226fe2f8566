"""The plain data of a request on its way through the gateway, and where it should not go again."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct
from msgspec import field as struct_field

from gateway.domain.json_members import Edit, only_model
from gateway.domain.quotas import Price, Rates
from gateway.domain.residency import Residency
from gateway.domain.scopes import AdminRole, Scopes
from shared.protocol.messages import Headers, RequestHead, Trailers, UsageMode
from shared.protocol.progress import Progress

PREEMPTED = "preempted"
"""Why a deployment did not bring a request to its end that gave its slot back, and was well there."""

REMEMBERED_S = 10.0
"""So long a request keeps away from a deployment whose engine failed on it."""


class Tier(StrEnum):
    """How urgent a request is."""

    REALTIME = "realtime"
    STANDARD = "standard"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the API key presented and the tenant it belongs to."""

    key_id: str
    key_name: str
    tenant: str
    where: Residency | None = None
    """Its requests run nowhere else."""
    scopes: Scopes | None = None
    """What it may ask for; None: anything."""
    role: AdminRole | None = None
    """On the admin API; None: nothing."""
    rates: Rates | None = None
    """How much it may have at once; None: as much as its tenant."""
    lasting: bool = True
    """False: its credential is a token, after whose end nothing is done in its name."""


@dataclass(frozen=True, slots=True)
class AgentPrincipal:
    """Which agent a tunnel belongs to and what its identity allows (PROTOCOL, Identity).

    ``models`` are shell patterns (``fnmatch``, case counts) of the model names it may serve;
    ``("*",)`` allows every name, an empty tuple none. ``serial`` is its certificate's. With ``held`` an
    operator wants it to get no new work.
    """

    name: str
    models: tuple[str, ...] = ("*",)
    labels: Mapping[str, str] = field(default_factory=dict)
    serial: str = ""
    held: bool = False


class RequestBody:
    """A request's body: what has been read so far and, when it was not read whole, the rest.

    ``rest`` yields the remaining bytes once; a body with a ``rest`` that was begun (``rest_begun``) cannot be
    sent again, to the same deployment or another.
    ``size_bytes`` is the declared length, or None when the client sent it chunked. ``models`` is where the
    values of a JSON body's own members ``model`` stand, None where that is not known.

    What has been read is held in ``pieces``, so that changing a long body costs no copy of it.
    """

    __slots__ = ("_models", "held_bytes", "pieces", "rest", "rest_begun", "size_bytes")

    def __init__(
        self,
        prefix: bytes | Sequence[bytes],
        rest: AsyncIterator[bytes] | None = None,
        size_bytes: int | None = None,
        models: Sequence[tuple[int, int]] | None = None,
        rest_begun: bool = False,
    ) -> None:
        self.pieces: Sequence[bytes]
        if isinstance(prefix, bytes):
            self.pieces, self.held_bytes = (prefix,), len(prefix)
        else:
            self.pieces, self.held_bytes = prefix, sum(map(len, prefix))
        self.rest = rest
        self.size_bytes = size_bytes
        self._models: Sequence[tuple[int, int]] | bool | None = models
        """True: there is one that nobody has looked for."""
        self.rest_begun = rest_begun

    @property
    def prefix(self) -> bytes:
        """What has been read, in one piece: for those who know that it is short (``held_bytes``)."""
        if len(self.pieces) != 1:
            self.pieces = (b"".join(self.pieces),)
        return self.pieces[0]

    @prefix.setter
    def prefix(self, data: bytes) -> None:
        self.pieces, self.held_bytes, self._models = (data,), len(data), None

    def forget(self) -> None:
        """What has been read is needed no more."""
        self.pieces, self.held_bytes, self._models = (b"",), 0, None

    @property
    def models(self) -> Sequence[tuple[int, int]] | None:
        """See above. Looked for when somebody wants to know."""
        if isinstance(self._models, bool):
            only = only_model(self.prefix)
            self._models = None if only is None else [only]
        return self._models

    def names_model(self, places: Sequence[tuple[int, int]] | None) -> None:
        """The body is JSON that names its model at ``places``; None: once, and it is short."""
        self._models = True if places is None else places

    def again(self) -> "RequestBody":
        """The same body, to be changed without changing this one."""
        other = RequestBody(self.pieces, self.rest, self.size_bytes)
        other._models = self._models
        return other

    def edit(self, edits: Sequence[Edit]) -> None:
        """Change what has been read. ``edits`` are in order and do not overlap."""
        if not edits:
            return
        if self._models is True:
            for _, _, new in edits:
                if b"model" in new:  # it may not be the only one any more
                    self._models = self.models
                    break
        if len(edits) == 1 and len(self.pieces) == 1:
            self._edit_once(edits[0])
            return
        pieces: list[bytes] = []
        todo, offset = list(reversed(edits)), 0
        for piece in self.pieces:
            end, position = offset + len(piece), 0
            while todo and todo[-1][0] - offset <= len(piece):
                start, stop, new = todo.pop()
                pieces += [piece[position : max(position, start - offset)], new]
                position = max(0, min(stop, end) - offset)
                if stop > end:
                    todo.append((end, stop, b""))
                    break
            pieces.append(piece[position:] if position else piece)
            offset = end
        if self._models and not isinstance(self._models, bool):
            self._models = [_moved(place, edits) for place in self._models]
        self.pieces = [piece for piece in pieces if piece] or (b"",)
        self._grow(sum(map(len, self.pieces)) - self.held_bytes)

    def _edit_once(self, edit: Edit) -> None:
        """:meth:`edit` with one edit of one piece, as most often."""
        start, end, new = edit
        whole, grown = self.pieces[0], len(new) - (end - start)
        pieces = whole[:start], new, whole[end:]
        self.pieces = pieces if all(pieces) else [piece for piece in pieces if piece] or (b"",)
        if self._models and not isinstance(self._models, bool):
            self._models = [
                (begin + grown, stop + grown) if begin >= end else _moved((begin, stop), (edit,))
                for begin, stop in self._models
            ]
        self._grow(grown)

    def _grow(self, by_bytes: int) -> None:
        self.held_bytes += by_bytes
        if self.size_bytes is not None:
            self.size_bytes += by_bytes


def _moved(place: tuple[int, int], edits: Sequence[Edit]) -> tuple[int, int]:
    """Where a place is after ``edits``, be it one that was replaced itself."""
    start, end = place
    by = sum(len(new) - (to - begin) for begin, to, new in edits if to <= start)
    grown = sum(len(new) - (to - begin) for begin, to, new in edits if (begin, to) == place)
    return start + by, end + by + grown


@dataclass(frozen=True, slots=True)
class BegunAnswer:
    """The front part of a streamed answer whose gateway is gone, with all that it knew of it."""

    data: bytes = field(repr=False)
    """Whole events, as its reader has them."""
    headers: Headers
    """Of the answer."""
    model: str
    """That answered; not an alias."""
    version: str
    """The deployment's; empty if it said none."""


class StreamedOutput(Protocol):
    """Where the events of an answer are kept whose engine streams it, though its reader wants it in one
    piece."""

    async def begin(self, request: "Request", headers: Headers, version: str) -> None:
        """An answer to ``request`` begins, by a deployment of ``version``; what there was of another one is
        dropped."""
        ...

    async def append(self, data: bytes) -> None:
        """The next bytes. Returns when there is room for more."""
        ...

    def pieces(self) -> AsyncIterator[bytes]:
        """All bytes so far, those included that came of an earlier attempt."""
        ...

    async def drop(self) -> None:
        """Forget all of them."""
        ...


class TracedAttempt(Protocol):
    """What is recorded of one attempt; :class:`gateway.observability.request_trace.AttemptTrace`."""

    ended_s: float | None
    trailers: Trailers | None
    status: int | None


class DispatchTrace(Protocol):
    """What is recorded of a request whose trace is. Times are seconds of the event loop's clock.

    :class:`gateway.observability.request_trace.RequestTrace` is one."""

    def wait(self, since_s: float, *, continuation: bool = False) -> None: ...
    def end_wait(self, now: float) -> None: ...
    def attempt(self, head: RequestHead, deployment: str, agent: str, kind: str, now: float) -> Any: ...
    def begin(self, attempt: Any) -> None: ...
    def trouble(self, deployment: str, why: str) -> None: ...


class Request(Struct):
    """A classified request: everything queue, scheduler and dispatch need to know.

    Times are seconds of the gateway's monotonic clock; token counts are estimates.
    """

    id: str
    principal: Principal
    method: str
    path: str
    """The engine's path, with the query string when there is one."""
    headers: Headers
    """For the engine: lower-case, without hop-by-hop headers and without the client's credentials."""
    model: str
    route: str
    """What the deployment must be able to do: chat, completions, embeddings, … or ``any``."""
    streaming: bool
    body: RequestBody
    arrived_s: float
    need: str
    """What a deployment must be able to do for it (:mod:`shared.protocol.routes`): its route, or one of that
    route's further paths."""
    usage: UsageMode = UsageMode.NONE
    tier: Tier = Tier.STANDARD
    where: Residency | None = None
    """Only deployments will do that carry these labels: what the key allows, or less."""
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_bytes: int = 0
    """Bytes that its engine reads as the prompt; 0 if that is not known."""
    most_tokens: int | None = None
    """What the request allows its answer to have, all choices together; None: it does not say."""
    choices: int = 1
    """Answers that it makes its engine write."""
    endless: bool = False
    """Where it does not say, each of them is as long as there is room."""
    prefix: tuple[int, ...] = ()
    """The prompt's chain of fingerprints (:mod:`gateway.domain.fingerprints`)."""
    deadline_s: float | None = None
    """Absolute, on the same clock as ``arrived_s``."""
    work_tokens: int = 0
    """How many input tokens are as much work as the pictures or videos that it asks for; 0 where that is not
    known."""
    session_key: str | None = None
    ttft_s: float | None = None
    """Seconds from ``arrived_s`` within which the client wants its first token."""
    trace: str | None = None
    attempts: list[str] = struct_field(default_factory=list)
    """Deployments this request was given to so far, oldest first."""
    failed: dict[str, float] = struct_field(default_factory=dict)
    """Those whose engine failed on it since its answer last got further, oldest first, and when."""
    version: str | None = None
    """Only deployments of this version will do: it was asked for, or an answer has begun that must go on."""
    alias: str | None = None
    """What the client asked for, where that does not simply stand for ``model``."""
    target: str = ""
    """With an alias, the model or the version of it that was chosen."""
    shadow: bool = False
    """A copy whose answer nobody gets: it is not gone on with elsewhere."""
    agent: str | None = None
    """Only this agent's deployments will do: the client named it, or its session is there."""
    session_pin: str | None = None
    """Where the gateway remembers at which agent its session is
    (:mod:`gateway.scheduling.policies.affinity`); None: no session decides, or the client named the agent."""
    continuing: bool = False
    """Only deployments will do that can go on with an answer of this route which another one began."""
    gives_way: bool = False
    """It runs for a job of the batch tier: it takes slots that nobody else wants, and gives them back as soon
    as others do."""
    counted_later: Callable[[], bool] | None = None
    """Asked when its answer breaks off: whether a request that goes on with it counts what was used."""
    begun: BegunAnswer | None = None
    """Its reader has the front part of its answer: only what follows is wanted."""
    streamed_output: StreamedOutput | None = None
    """Its engine may stream the answer, which is kept here while it comes
    (:mod:`gateway.pipeline.accumulation`); None: it is asked as its client asked."""
    load_note: Callable[[], str | None] | None = None
    """What it waits for while its model is being loaded, and None else; set where agents load its model when
    they are told."""
    preempted: int = 0
    """How often it gave its slot back for a more urgent one."""
    seen_tokens: int = 0
    """Tokens seen in its streamed answers so far; used if no engine counts them."""
    seen_bytes: int = 0
    """Bytes seen in the bodies of its answers."""
    barred: Callable[["Request", str], bool] | None = None
    """Says of a kind of engine whether it manages such, and may not go there; None: it may go to all."""
    at_once: bool = False
    """It does not wait for a slot: it came from another gateway, which has a queue."""
    via: tuple[str, ...] = ()
    """The ids of the gateways that it came through before this one (PROTOCOL §7.6)."""
    gpu_s: float = 0.0
    """GPU-seconds it used in attempts that are over (:mod:`gateway.quota.usage`)."""
    price: Price | None = None
    """The price of its model when an attempt ended last; None: none has."""
    upgrade: bool = False
    """Its client asks for a WebSocket. ``body`` is what the client says on it, and begins once the engine has
    taken it; nothing is sent before."""
    on_progress: Callable[[Progress], None] | None = None
    """Told how far its engine has come; None: nobody wants to know."""
    troubles: list[tuple[str, str]] | None = None
    """Deployments that did not bring it to its end, in order, and why; None: there was none."""
    dispatch_trace: DispatchTrace | None = None
    """Notes its way for its trace; None: it is not recorded."""

    decisions: list[Any] | None = None
    """What was known each time a deployment got it (:mod:`gateway.dispatch.decisions`); None: none has."""
    last_wait: tuple[float, float, int, tuple[tuple[str, float], ...]] | None = None
    """When it began and ended to wait for a slot that it did not get, how many waited then, and why it
    waited."""

    def note_trouble(self, deployment: str, why: str) -> None:
        """An attempt at ``deployment`` failed before or during its answer."""
        self.troubles = [*(self.troubles or ()), (deployment, why)]
        if self.dispatch_trace is not None:
            self.dispatch_trace.trouble(deployment, why)

    @property
    def was_worked_on(self) -> bool:
        """Whether an engine has it, or had and did not fail on it."""
        failed = sum(why != PREEMPTED for _, why in self.troubles or ())
        return len(self.attempts) > failed

    def note_failure(self, deployment: str, now: float) -> None:
        """The engine of ``deployment`` failed on it."""
        self.failed.pop(deployment, None)
        self.failed[deployment] = now

    def forget_failures(self, *, but_last: bool) -> None:
        """It got further: what failed before that says nothing of what comes."""
        kept = list(self.failed.items())[-1:] if but_last else []
        self.failed = dict(kept)

    def deployments_to_avoid(self, now: float) -> list[str]:
        """Deployments to which it goes again only when there is no other: where it failed not long ago, and
        where it was last."""
        lately = [key for key, at_s in self.failed.items() if now - at_s < REMEMBERED_S]
        return [*lately, *self.attempts[-1:]]
