"""Which agents may connect: enrolment, certificates, revocation (PROTOCOL §8.8)."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from gateway.domain.request import AgentPrincipal
from gateway.storage import AgentRecord, Enrolment, Store
from gateway.storage.errors import AgentKeyRevoked, EnrolmentRefused, RecordError, StateError
from gateway.storage.tokens import NOT_MADE_HERE
from shared.handshake import GatewayHandshake, Hello, JoinProof
from shared.identity import (
    CERTIFICATE_LIFE_S,
    AgentCertificate,
    GatewayIdentity,
    GatewayKeys,
    KeySuccession,
    issue_certificate,
    new_serial,
)
from shared.identity.certificates import BACKDATE_S
from shared.protocol.errors import ErrorCode, HandshakeRejected

STATE_RETRY_S = 5.0
"""When an agent is told to come back after the database failed: a stuck writer is mostly gone by then."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AdmittedAgent:
    """An agent that may have a session. ``certificate_der`` goes into WELCOME when it is not None."""

    principal: AgentPrincipal
    certificate_der: bytes | None
    agent_id: int
    """Of the enrolment: stays with the key, whatever becomes of the name."""
    certificate: AgentCertificate
    """The one it came with, or was given since."""
    software: str = ""
    """Program and version, as it says."""

    @property
    def name(self) -> str:
        return self.principal.name

    @property
    def models(self) -> tuple[str, ...]:
        """Shell patterns of the models it may serve."""
        return self.principal.models


class AgentDirectory:
    """Decides on agents from the store, which it keeps in memory and as fresh as the store is.

    What says that it raises StateError may wait for the disk: call it from a worker thread. The others cost
    microseconds: call them from the event loop, like this::

        attach:              reason = directory.refusal(admitted)       # known to be revoked since admit?
        every 0.25 s or so:  if await in_a_thread(directory.changed):
                                 for each session: reason = directory.refusal(session.admitted)
        reason not None:     end its tunnel with ErrorCode.REVOKED and the reason
    """

    def __init__(self, store: Store, certificate_life_s: float = CERTIFICATE_LIFE_S) -> None:
        """Reads every agent. Raises StateError."""
        self._store = store
        self.changes = store.changes
        """Tells whether anybody has changed the store."""
        self._life_s = certificate_life_s
        self._lock = threading.Lock()
        self._by_key: dict[bytes, AgentRecord] = {}
        self._by_id: dict[int, AgentRecord] = {}
        self._data_version = -1
        self._revision = 0
        self._reported = 0
        self._refresh()
        self._reported = self._revision

    @property
    def gateway_keys(self) -> GatewayKeys:
        """The keys of the gateway as they are now. Raises StateError."""
        return self._store.identity.keys

    @property
    def known_keys(self) -> GatewayKeys:
        """The keys of the gateway when they were read last."""
        return self._store.identity.known

    def admit(self, hello: Hello, handshake: GatewayHandshake, wall_s: float) -> AdmittedAgent:
        """Let the sender of a verified HELLO in at wall-clock time ``wall_s``, or say why not.

        A join token is redeemed: checked, counted, the agent enrolled and its certificate issued, all or
        nothing. A certificate is checked for revocation, and replaced when it is worn. Raises
        HandshakeRejected, whose reason is for the agent's operator.
        """
        try:
            if hello.join is not None:
                admitted = self._enrol(hello, hello.join, handshake, wall_s)
            else:
                assert hello.certificate is not None
                admitted = self._recognise(hello.certificate, handshake.identity, wall_s)
            return replace(admitted, software=hello.software)
        except AgentKeyRevoked as error:
            raise HandshakeRejected(ErrorCode.REVOKED, str(error)) from error
        except EnrolmentRefused as error:
            raise HandshakeRejected(ErrorCode.UNAUTHENTICATED, str(error)) from error
        except StateError as error:
            _log.error("state_failed", doing="admit", agent=hello.name, error=str(error))
            raise HandshakeRejected(
                ErrorCode.INTERNAL, "the gateway cannot use its database just now", STATE_RETRY_S
            ) from error

    def changed(self) -> bool:
        """Whether any agent was enrolled, renewed or revoked, by any process, since the last call.

        Raises StateError.
        """
        self._refresh()
        revision = self._revision
        changed = revision != self._reported
        self._reported = revision
        return changed

    def refusal(self, admitted: AdmittedAgent) -> str | None:
        """Why an agent admitted earlier may no longer be connected; None while it may: as of the latest look
        at the store."""
        record = self._by_id.get(admitted.agent_id)
        if record is None:
            return "the gateway no longer knows this agent"
        return None if record.revoked_s is None else _revocation(record)

    def rights(self, admitted: AdmittedAgent) -> AgentPrincipal:
        """What the agent is called and may serve, as of the latest look at the store."""
        record = self._by_id.get(admitted.agent_id)
        return admitted.principal if record is None else _principal(record, admitted.principal.serial)

    def renewal_check(self, wall_s: float) -> Callable[[AdmittedAgent], bool]:
        """What says of connected agents whether it is time for a fresh certificate: the one held is worn, or
        was issued by the key before or for a former name. For use at once, on the event loop. Raises
        StateError."""
        self._refresh()
        issuer = self.gateway_keys.current.public_key

        def is_due(admitted: AdmittedAgent) -> bool:
            held = admitted.certificate
            if held.needs_renewal(wall_s) or held.issuer != issuer:
                return True
            record = self._by_id.get(admitted.agent_id)
            return record is not None and record.name != held.name

        return is_due

    def renewed_since(self, admitted: AdmittedAgent) -> bool:
        """Whether the agent was issued a certificate that lasts longer than the one it is known to hold, as
        of the latest look at the store."""
        record, held = self._by_id.get(admitted.agent_id), admitted.certificate
        return record is not None and any(
            expires_s > held.not_after_s for expires_s in record.certificates.values()
        )

    def renew(self, admitted: AdmittedAgent, wall_s: float) -> tuple[AgentCertificate, KeySuccession | None]:
        """A fresh certificate for a connected agent, by the gateway's key of now for its name of now, and the
        word of the key before if that still counts. Raises StateError; UnknownRecord for one revoked."""
        self._refresh()
        keys, record = self.gateway_keys, self._by_id[admitted.agent_id]
        fresh = self._replace(record, admitted.certificate, keys.current, record.name, wall_s)
        return fresh, keys.succession(wall_s)

    def forget_previous_key(self, wall_s: float) -> None:
        """Remove the gateway's key before, once it counts no more. Waits for the disk. Raises StateError."""
        if self._store.identity.forget_previous(wall_s):
            _log.info("gateway_key_forgotten")

    def _enrol(
        self, hello: Hello, join: JoinProof, handshake: GatewayHandshake, wall_s: float
    ) -> AdmittedAgent:
        token = self._store.tokens.get(join.token_id)
        if token is None:
            raise EnrolmentRefused(NOT_MADE_HERE)
        if not handshake.verify_join(token.verifier):
            raise HandshakeRejected(
                ErrorCode.UNAUTHENTICATED, "the join token's secret is wrong: copy the token again, all of it"
            )
        certificate = issue_certificate(
            handshake.identity, hello.name, hello.public_key, new_serial(), wall_s, self._life_s
        )
        serial = f"{certificate.serial:x}"
        enrolment = Enrolment(join.token_id, hello.name, hello.public_key, serial, certificate.not_after_s)
        record = self._store.agents.enrol(enrolment, wall_s)
        self._refresh()  # so that it is known when its session begins
        return AdmittedAgent(_principal(record, serial), certificate.der, record.id, certificate)

    def _recognise(
        self, certificate: AgentCertificate, identity: GatewayIdentity, wall_s: float
    ) -> AdmittedAgent:
        self._refresh()
        record = self._by_key.get(certificate.public_key)
        serial = f"{certificate.serial:x}"
        if record is not None and record.revoked_s is not None:
            raise HandshakeRejected(ErrorCode.REVOKED, _revocation(record))
        if record is None or serial not in record.certificates:
            raise HandshakeRejected(
                ErrorCode.UNAUTHENTICATED,
                f"this gateway has no record of this certificate of agent {certificate.name}: "
                "join again with a token",
            )
        fresh = None
        if certificate.needs_renewal(wall_s) or certificate.issuer != identity.public_key:
            fresh = self._try_to_replace(record, certificate, identity, wall_s)
        held = fresh or certificate
        principal = _principal(record, f"{held.serial:x}")
        return AdmittedAgent(principal, None if fresh is None else fresh.der, record.id, held)

    def _try_to_replace(
        self, record: AgentRecord, held: AgentCertificate, identity: GatewayIdentity, wall_s: float
    ) -> AgentCertificate | None:
        """A fresh certificate for the name the agent goes by. Not having one is no reason to refuse a good
        agent."""
        try:
            return self._replace(record, held, identity, held.name, wall_s)
        except StateError as error:
            _log.error("state_failed", doing="renew", agent=record.name, error=str(error))
            return None
        except RecordError as error:
            raise HandshakeRejected(ErrorCode.REVOKED, str(error)) from error

    def _replace(
        self, record: AgentRecord, held: AgentCertificate, identity: GatewayIdentity, name: str, wall_s: float
    ) -> AgentCertificate:
        """Issue and record a certificate in the place of ``held``. Where that has not begun, the clock is
        behind or was ahead, and nothing here says which: what replaces it begins after it and ends no sooner,
        so that it is good by either. Raises StateError; UnknownRecord for an agent that was revoked."""
        begin_s, life_s = wall_s, self._life_s
        if begin_s < held.not_before_s:
            begin_s = held.not_before_s + BACKDATE_S + 1
            life_s = max(life_s, held.not_after_s - begin_s)
        fresh = issue_certificate(identity, name, held.public_key, new_serial(), begin_s, life_s)
        serial, in_use = f"{fresh.serial:x}", f"{held.serial:x}"
        self._store.agents.renew(record.id, serial, fresh.not_after_s, wall_s, in_use)
        return fresh

    def _refresh(self) -> None:
        data_version = self._store.changes.read()
        if data_version == self._data_version:
            return
        with self._lock:
            data_version = self._store.changes.read()
            self._revision, changed = self._store.agents.changed_since(self._revision)
            for record in changed:
                self._by_key[record.public_key] = record
                self._by_id[record.id] = record
            self._data_version = data_version


def _principal(record: AgentRecord, serial: str) -> AgentPrincipal:
    return AgentPrincipal(record.name, record.models, record.labels, serial, record.held_s is not None)


def _revocation(record: AgentRecord) -> str:
    because = f": {record.revoked_reason}" if record.revoked_reason else ""
    return f"agent {record.name} was revoked{because}"
