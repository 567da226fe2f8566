"""Gives connected agents fresh certificates and the gateway's next key, inside their sessions.

PROTOCOL §8.6, §8.12. A session may last for months, so nothing here waits for an agent to dial again.
Belongs to the event loop's thread.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import structlog

from gateway.auth.agents import AdmittedAgent, AgentDirectory
from gateway.fleet.session import AgentSession
from gateway.storage.errors import RecordError
from shared.handshake import Renewal
from shared.identity import AgentCertificate, KeySuccession
from shared.protocol.errors import TrunklineError
from shared.protocol.messages import CommandResult

AT_ONCE = 64
"""Certificates issued in one round: each waits for the disk, and a new gateway key concerns all agents."""

OTHERS_WAIT_S = 3600.0
"""A process that does not own renewals sends one that is due for so long, and that nobody has issued."""

_FIRST_ID = 1 << 40
"""Commands that load and unload count from 1."""

_log = structlog.get_logger(__name__)

IsDue = Callable[[AdmittedAgent], bool]
Issue = Callable[[AdmittedAgent, float], Awaitable[tuple[AgentCertificate, KeySuccession | None]]]


@dataclass(frozen=True, slots=True)
class RenewalThreads:
    """Where what waits for the store runs: one thread for what only reads, and those that may write."""

    reading: Executor
    writing: Executor
    closed: Callable[[], bool] = lambda: False
    """Whether they take no more work."""


class Renewals:
    """Which agents were sent a renewal, and what they answered."""

    def __init__(self, agents: dict[AgentSession, AdmittedAgent]) -> None:
        """``agents`` are the sessions there are, kept by their owner; what an agent holds is noted there."""
        self._agents = agents
        self._ids = itertools.count(_FIRST_ID)
        self._sent: set[AgentSession] = set()
        self._unable: dict[AgentSession, tuple[int, bool]] = {}
        """Agents that refused, with the serial of what they hold and whether it was worn. They are not sent
        another while both are the same."""
        self._due_since: dict[AgentSession, float] = {}
        """For whom a renewal is due that another process is to send, and since when."""

    async def sweep(
        self, directory: AgentDirectory, threads: RenewalThreads, wall_s: float, *, owns: bool
    ) -> None:
        """Send what is due now. Of several processes the one that ``owns`` this does so at once; the others
        only where it has not done so for long: an agent may not reach it. Raises StateError."""
        loop = asyncio.get_running_loop()
        is_due = await loop.run_in_executor(threads.reading, directory.renewal_check, wall_s)
        keys = directory.known_keys
        if threads.closed():
            return
        if owns and keys.previous is not None and keys.previous_at(wall_s) is None:
            await loop.run_in_executor(threads.writing, directory.forget_previous_key, wall_s)
        if owns:
            self._due_since.clear()
        else:
            is_due = self._overdue(is_due, directory.renewed_since, wall_s)
        await self.look(
            is_due, lambda *which: loop.run_in_executor(threads.writing, directory.renew, *which), wall_s
        )

    async def look(self, is_due: IsDue, issue: Issue, wall_s: float) -> None:
        """Send what is due at ``wall_s``: ``AgentDirectory.renewal_check`` says for whom, ``issue`` calls
        ``AgentDirectory.renew`` where it may wait for the disk. Raises StateError."""
        self._sent &= self._agents.keys()
        for session in self._unable.keys() - self._agents.keys():
            del self._unable[session]
        for session, admitted in list(itertools.islice(self._due(is_due, wall_s), AT_ONCE)):
            if session.closed:
                continue  # meanwhile, and maybe all of them, with the threads that issue
            try:
                certificate, succession = await issue(admitted, wall_s)
            except RecordError:
                continue  # revoked meanwhile: its session is ended for that
            if not session.closed:
                self._send(session, certificate, succession, wall_s)

    def _overdue(self, is_due: IsDue, renewed_since: IsDue, wall_s: float) -> IsDue:
        """What says of agents whether the owner has left them for ``OTHERS_WAIT_S``."""
        due = {
            session: self._due_since.get(session, wall_s)
            for session, admitted in self._agents.items()
            if is_due(admitted) and not renewed_since(admitted)
        }
        self._due_since = due
        late = {self._agents[session].agent_id for session, at in due.items() if wall_s - at >= OTHERS_WAIT_S}
        return lambda admitted: admitted.agent_id in late

    def _due(self, is_due: IsDue, wall_s: float) -> Iterator[tuple[AgentSession, AdmittedAgent]]:
        for session, admitted in self._agents.items():
            if session.closed or session.suspended or session in self._sent:
                continue
            if is_due(admitted) and self._unable.get(session) != _held(admitted, wall_s):
                yield session, admitted

    def _send(
        self,
        session: AgentSession,
        certificate: AgentCertificate,
        succession: KeySuccession | None,
        wall_s: float,
    ) -> None:
        def answered(result: CommandResult) -> None:
            self._sent.discard(session)
            if result.ok:
                self._taken(session, certificate)
            else:
                self._refused(session, sent_with, result.error, wall_s)

        sent_with = self._agents.get(session)
        renewal = Renewal(next(self._ids), certificate.der, succession)
        try:
            session.ask(renewal.to_dict(), answered)
        except TrunklineError as error:
            _log.debug("renewal_not_sent", agent=session.principal.name, error=str(error))
        else:
            self._sent.add(session)

    def _taken(self, session: AgentSession, certificate: AgentCertificate) -> None:
        if (admitted := self._agents.get(session)) is not None:
            self._agents[session] = replace(admitted, certificate=certificate)
        _log.info("certificate_renewed", agent=certificate.name, valid_to_s=certificate.not_after_s)

    def _refused(
        self, session: AgentSession, sent_with: AdmittedAgent | None, reason: str, wall_s: float
    ) -> None:
        """An agent that knows no renewal, or finds fault with it. WELCOME can renew what has worn, and the
        session goes on over the next tunnel; for what has expired there is none. One that WELCOME gave
        another certificate meanwhile refuses only because this one is older."""
        admitted = self._agents.get(session)
        if admitted is None or sent_with is None or admitted.certificate != sent_with.certificate:
            return
        _log.warning("certificate_not_taken", agent=session.principal.name, reason=reason)
        self._unable[session] = held = _held(admitted, wall_s)
        if held[1] and wall_s <= admitted.certificate.not_after_s:
            session.endpoint.drop_tunnel()


def _held(admitted: AdmittedAgent, wall_s: float) -> tuple[int, bool]:
    """The serial of what an agent holds, and whether it has worn."""
    return admitted.certificate.serial, admitted.certificate.needs_renewal(wall_s)
