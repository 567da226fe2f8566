"""What operators are told of all processes of a gateway: those of this host are asked over Unix sockets, the
others over HTTP."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from gateway.api.admin.process_page import ProcessPage
from gateway.app.cluster import Cluster
from gateway.cluster.member import ClusterMember
from gateway.cluster.process_reads import RemoteProcesses
from gateway.domain.errors import ProcessSilent
from gateway.quota.lease_client import LeaseClient
from gateway.runtime.config import Settings
from gateway.runtime.lifecycle import Lifecycle
from gateway.runtime.workers.siblings import Json, SiblingAnswers, Siblings, SiblingSilent
from gateway.storage import Store
from shared import __version__

Answerer = Callable[[Json], Awaitable[Json]]

FOR_OTHERS = frozenset(
    ("agents", "models", "queue", "process", "streams", "requests", "request", "live", "logs", "scaling")
)
"""Questions that processes on other hosts may ask: all of them only read, but that ``streams`` may have an
agent's streams go on elsewhere."""

STARTING = "it is being started, or hangs"


class ProcessReads:
    """Every other process of the gateway, as :class:`gateway.api.admin.fleet.FleetAdmin` asks them."""

    def __init__(self, own: str, siblings: Siblings | None, remote: RemoteProcesses | None) -> None:
        """``siblings`` are the workers of this host, None where there are no others; ``remote`` are the
        processes elsewhere, None where none is known."""
        self.own = own
        self._siblings = siblings
        self._remote = remote
        self._answerers: dict[str, Answerer] = {}

    def answer(self, question: str, answerer: Answerer) -> None:
        """Have ``answerer`` called with what came along with this question."""
        self._answerers[question] = answerer
        if self._siblings is not None:
            self._siblings.answer(question, answerer)

    def answerers(self, process: str) -> Mapping[str, Answerer] | None:
        """What a process on this host tells those on other hosts; None: it is not here."""
        if process == self.own:
            return {name: each for name, each in self._answerers.items() if name in FOR_OTHERS}
        if self._siblings is not None and process in self._siblings.others:
            return {name: partial(self._pass_on, process, name) for name in FOR_OTHERS}
        return None

    async def ask_all(self, question: str, **facts: Any) -> SiblingAnswers:
        """Ask every other process at the same time."""
        here, elsewhere = await asyncio.gather(
            self._ask_here(question, facts), self._ask_remote(question, facts)
        )
        return SiblingAnswers(
            {**here.found, **elsewhere.found},
            [*here.missing, *elsewhere.missing],
            {**dict.fromkeys(here.missing, STARTING), **elsewhere.reasons},
        )

    def gone(self) -> dict[str, str]:
        """Processes that are known and not asked any more, and why."""
        return {} if self._remote is None else self._remote.gone()

    async def _ask_here(self, question: str, facts: Json) -> SiblingAnswers:
        return (
            SiblingAnswers({}, [])
            if self._siblings is None
            else await self._siblings.ask_all(question, **facts)
        )

    async def _ask_remote(self, question: str, facts: Json) -> SiblingAnswers:
        if self._remote is None:
            return SiblingAnswers({}, [])
        answers = await self._remote.ask_all(question, **facts)
        return SiblingAnswers(answers.found, list(answers.missing), answers.missing)

    async def _pass_on(self, process: str, question: str, facts: Json) -> Json:
        """Raises ProcessSilent."""
        assert self._siblings is not None
        try:
            return await self._siblings.ask(process, question, **facts)
        except SiblingSilent:
            raise ProcessSilent(f"The process {process!r} does not answer: {STARTING}.") from None


def make_process_reads(
    settings: Settings, store: Store, member: ClusterMember | None, siblings: Siblings | None
) -> ProcessReads | None:
    """None where this process is the only one, or none of the others can be asked."""
    remote = None
    if member is not None and store.member_key is not None:
        names = (lambda: ()) if siblings is None else (lambda: siblings.others)
        remote = RemoteProcesses(member, store.member_key, names, settings.cluster.ca_file)
    if remote is None and siblings is None:
        return None
    own = siblings.own if siblings is not None else member.name if member is not None else "gateway"
    return ProcessReads(own, siblings, remote)


def make_process_page(
    store: Store, member: ClusterMember | None, reads: ProcessReads | None
) -> ProcessPage | None:
    """None where no process on another host can ask."""
    if member is None or reads is None or store.member_key is None:
        return None
    return ProcessPage(store.member_key, member.store_s, reads.answerers)


def process_facts(
    settings: Settings, cluster: Cluster, lifecycle: Lifecycle, leases: LeaseClient | None
) -> dict[str, Any]:
    """Of this process, for operators."""
    return {
        "process": process_name(settings, cluster),
        "host": socket.gethostname(),
        "version": __version__,
        "pid": os.getpid(),
        "state": lifecycle.phase.value,
        "requests": lifecycle.in_flight,
        "shared_limits": None if leases is None else leases.describe(),
    } | cluster.facts()


def process_name(settings: Settings, cluster: Cluster) -> str:
    """What operators know this process by."""
    member = cluster.member
    return settings.cluster.process or ("gateway" if member is None else member.name)
