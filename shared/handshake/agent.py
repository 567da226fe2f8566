"""The agent's half of the handshake (PROTOCOL §8)."""

import hmac
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shared.handshake.messages import (
    NONCE_BYTES,
    SOFTWARE_CHARS,
    SUPPORTED_VERSIONS,
    Challenge,
    HelloClaims,
    JoinProof,
    ResumeRequest,
    Welcome,
    WelcomeTerms,
    join_statement,
    read_reject,
)
from shared.handshake.transcript import Transcript, body_of
from shared.identity import (
    NAME_RULE,
    AgentCertificate,
    JoinToken,
    fingerprint_of,
    is_name,
    public_bytes,
    verify_certificate,
)
from shared.identity.certificates import CERTIFICATE_BYTES
from shared.identity.keys import FINGERPRINT_BYTES, gateway_id
from shared.protocol.credit import WindowSettings
from shared.protocol.errors import (
    CertificateInvalid,
    CertificateOutOfDate,
    ErrorCode,
    GatewayUntrusted,
    HandshakeError,
    HandshakeMalformed,
    HandshakeRejected,
)
from shared.protocol.frames import FrameType
from shared.protocol.peers import CAPABILITIES

CLOCK_TOLERANCE_S = 86_400.0
"""How far a GPU host's clock may be off before a certificate just made looks wrong to it. The gateway's
clock decides whether a certificate is valid; the agent takes it, and tells its operator."""


VERSION_RETRY_S = 60.0
"""A CHALLENGE without a version in common may be a replay of what the gateway spoke once (PROTOCOL §8.3): it
is no reason to give up, as a REJECT is."""

REJOIN = "remove membership.json from its state directory and start it with a new token (--join)"


class AgentHandshakeState(Enum):
    """How far the agent's half has come (PROTOCOL §8.7)."""

    START = auto()
    GREETING = auto()
    """HELLO is out."""
    ANSWERED = auto()
    """A WELCOME or REJECT verified."""
    FAILED = auto()
    """The peer sent something that did not verify."""


NEXT_STATES: dict[AgentHandshakeState, frozenset[AgentHandshakeState]] = {
    AgentHandshakeState.START: frozenset({AgentHandshakeState.GREETING, AgentHandshakeState.FAILED}),
    AgentHandshakeState.GREETING: frozenset({AgentHandshakeState.ANSWERED, AgentHandshakeState.FAILED}),
}
"""What is not here is a frame out of turn."""


class AgentHandshake:
    """One handshake with one gateway, seen from the agent. Use once, in this order::

        send(HELLO, handshake.receive_challenge(payload))                 # raises HandshakeError
        welcome = handshake.receive_answer(frame_type, payload, wall_s)   # raises HandshakeError

    Exactly one of ``certificate`` (DER, as the gateway issued it) and ``join_token`` is given.
    ``pinned_fingerprint`` is the SHA-256 of the gateway's public key (32 bytes); with a join token it may
    be None and is then the token's. ``also_pinned`` are fingerprints that will do as well, while the
    gateway's key changes (PROTOCOL §8.12). ``landed`` is called with a CHALLENGE that verified, and returns
    the session to resume in place of ``session``; it raises a HandshakeError to hang up (PROTOCOL §7.5).
    ``required`` are capabilities that the gateway must have, and is told of whatever it consists of;
    ``optional`` are told like them, and the gateway need not have them.
    ``nonce`` is 32 fresh random bytes. Raises ValueError for arguments that cannot make a HELLO (a bad name,
    both or neither credential, fingerprints that differ).
    """

    def __init__(
        self,
        key: Ed25519PrivateKey,
        name: str,
        nonce: bytes,
        certificate: bytes | None = None,
        join_token: JoinToken | None = None,
        pinned_fingerprint: bytes | None = None,
        software: str = "trunkline",
        limits: Mapping[str, int] | None = None,
        session: ResumeRequest | None = None,
        also_pinned: Sequence[bytes] = (),
        landed: Callable[[Challenge], ResumeRequest | None] | None = None,
        required: Sequence[str] = (),
        optional: Sequence[str] = (),
    ) -> None:
        if not is_name(name):
            raise ValueError(f"{name!a} cannot name an agent: {NAME_RULE}")
        if (certificate is None) == (join_token is None):
            raise ValueError("a handshake wants exactly one of certificate and join token")
        if certificate is not None and not 0 < len(certificate) <= CERTIFICATE_BYTES:
            raise ValueError(f"a certificate of {len(certificate)} bytes is none")
        assert len(nonce) == NONCE_BYTES
        assert software.isprintable()
        assert 0 < len(software) <= SOFTWARE_CHARS
        self._key = key
        self._public_key = public_bytes(key)
        self._name = name
        self._nonce = nonce
        self._certificate = certificate
        self._join_token = join_token
        self._pinned = _pin(join_token, pinned_fingerprint)
        self._also_pinned = tuple(also_pinned)
        self._software = software
        self._limits = limits or {}
        self._session = session
        self._landed = landed
        self._required = tuple(required)
        self._optional = tuple(optional)
        self._state = AgentHandshakeState.START
        self._transcript = Transcript()
        self._gateway_key = b""
        self.process: str | None = None
        """The process of the gateway that sent CHALLENGE, where there are several; None before CHALLENGE."""
        self.windows: WindowSettings | None = None
        """What ``limits`` announce for a new session; None: what an agent grants in its only one."""
        self.incarnation = 0
        """That process's incarnation."""

    @property
    def gateways(self) -> tuple[str, ...]:
        """The ids of the gateway keys that will do, the preferred one first."""
        return tuple(map(gateway_id, (self._pinned, *self._also_pinned)))

    def receive_challenge(self, payload: bytes) -> bytes:
        """Check CHALLENGE and return the payload of HELLO.

        Raises HandshakeMalformed, GatewayUntrusted (another key than the pinned one), SignatureInvalid,
        HandshakeRejected with VERSION, and a time to come again, when there is no common protocol version,
        and what ``landed`` raises.
        """
        if self._state is not AgentHandshakeState.START:
            raise HandshakeMalformed("CHALLENGE out of turn")
        try:
            challenge = self._check_challenge(payload)
            if self._landed is not None:
                self._session = self._landed(challenge)
        except HandshakeError:
            self._move(AgentHandshakeState.FAILED)
            raise
        self._move(AgentHandshakeState.GREETING)
        self._gateway_key = challenge.key
        self.process, self.incarnation = challenge.process, challenge.incarnation
        self._transcript.append(FrameType.CHALLENGE, payload)
        version = max(set(challenge.versions) & set(SUPPORTED_VERSIONS))
        return self._transcript.seal(FrameType.HELLO, self._claims(version).to_body(), self._key.sign)

    def receive_answer(self, frame_type: int, payload: bytes, wall_s: float) -> Welcome:
        """Check WELCOME or REJECT, whichever came; ``wall_s`` is seconds since 1970.

        Raises HandshakeRejected with the gateway's code, reason and ``retry_after_s`` for a REJECT that
        verifies; HandshakeMalformed (any other frame type too), SignatureInvalid, or CertificateInvalid
        when the certificate delivered is not the pinned gateway's for our name and key.
        """
        if self._state is not AgentHandshakeState.GREETING or frame_type not in (
            FrameType.WELCOME,
            FrameType.REJECT,
        ):
            raise HandshakeMalformed(f"handshake frame {frame_type:#04x} out of turn")
        try:
            welcome = self._check_answer(FrameType(frame_type), payload, wall_s)
        except HandshakeError as error:
            rejected = isinstance(error, HandshakeRejected)
            self._move(AgentHandshakeState.ANSWERED if rejected else AgentHandshakeState.FAILED)
            raise
        self._move(AgentHandshakeState.ANSWERED)
        return welcome

    def _check_challenge(self, payload: bytes) -> Challenge:
        challenge = Challenge.from_body(body_of(payload))
        fingerprint = fingerprint_of(challenge.key)
        if not any(hmac.compare_digest(fingerprint, pin) for pin in (self._pinned, *self._also_pinned)):
            raise GatewayUntrusted(self._stranger(gateway_id(fingerprint)))
        if challenge.gateway != gateway_id(fingerprint):
            raise HandshakeMalformed("CHALLENGE.gateway is not the id of CHALLENGE.key")
        self._transcript.verify(FrameType.CHALLENGE, payload, challenge.key)
        if not set(challenge.versions) & set(SUPPORTED_VERSIONS):
            theirs = ", ".join(map(str, challenge.versions))
            raise HandshakeRejected(
                ErrorCode.VERSION,
                f"the gateway speaks protocol version {theirs}, this agent "
                f"{', '.join(map(str, SUPPORTED_VERSIONS))}: upgrade the older of the two",
                VERSION_RETRY_S,
            )
        return challenge

    def _stranger(self, found: str) -> str:
        pinned = gateway_id(self._pinned)
        if self._join_token is not None:
            said = (
                f"the join token is for gateway {pinned}, but gateway {found} answered: "
                "make a token on the gateway that the URL leads to"
            )
            if self._join_token.has_checksum:
                return said
            return f"{said} (or copy this one again: it is of a form that does not show when it is damaged)"
        return (
            f"this agent belongs to gateway {pinned}, but gateway {found} answered: check the URL. If the "
            "gateway's key was changed while this agent was away, or it is to join the other gateway, "
            f"{REJOIN}"
        )

    def _claims(self, version: int) -> HelloClaims:
        join = None
        if self._join_token is not None:
            statement = join_statement(self._transcript.digest(), self._public_key, self._nonce, self._name)
            join = JoinProof(self._join_token.id_text, self._join_token.prove(statement))
        return HelloClaims(
            version=version,
            name=self._name,
            public_key=self._public_key,
            nonce=self._nonce,
            software=self._software,
            session=self._session,
            limits=dict(self._limits),
            certificate=self._certificate,
            join=join,
            capabilities=self._capabilities,
        )

    @property
    def _capabilities(self) -> tuple[str, ...]:
        """What HELLO names, each once."""
        of_processes = () if self.process is None else CAPABILITIES
        return tuple(dict.fromkeys((*of_processes, *self._required, *self._optional)))

    def _check_answer(self, frame: FrameType, payload: bytes, wall_s: float) -> Welcome:
        body = body_of(payload)
        self._transcript.verify(frame, payload, self._gateway_key)
        if frame is FrameType.REJECT:
            raise read_reject(body)
        terms = WelcomeTerms.from_body(body)
        if lacking := [each for each in self._required if each not in terms.capabilities]:
            raise HandshakeRejected(
                ErrorCode.VERSION,
                f"the gateway that was dialled has no capability {lacking[0]!r}: upgrade it",
                VERSION_RETRY_S,
            )
        certificate = self._check_certificate(terms.certificate)
        if terms.received is not None and (self._session is None or terms.session_id != self._session.id):
            raise HandshakeMalformed("WELCOME resumes a session that was not asked for")
        doubt = "" if certificate is None else _doubt(certificate, wall_s)
        return Welcome.of(
            terms,
            certificate,
            doubt=doubt,
            gateway_key=self._gateway_key,
            process=self.process,
            incarnation=self.incarnation,
        )

    def _check_certificate(self, der: bytes | None) -> AgentCertificate | None:
        if der is None:
            if self._join_token is not None:
                raise CertificateInvalid("the gateway accepted the join token but sent no certificate")
            return None
        return verify_certificate(der, self._gateway_key, self._name, self._public_key)

    def _move(self, state: AgentHandshakeState) -> None:
        assert state in NEXT_STATES.get(self._state, ()), (self._state, state)
        self._state = state


def _doubt(certificate: AgentCertificate, wall_s: float) -> str:
    """What is to be said of a certificate's dates; nothing, as a rule."""
    try:
        certificate.check_dates(wall_s, CLOCK_TOLERANCE_S, CLOCK_TOLERANCE_S)
    except CertificateOutOfDate as error:
        return str(error)
    return ""


def _pin(join_token: JoinToken | None, pinned: bytes | None) -> bytes:
    """The fingerprint that the gateway's key must have."""
    if pinned is not None and len(pinned) != FINGERPRINT_BYTES:
        raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes, not {len(pinned)}")
    if join_token is None:
        if pinned is None:
            raise ValueError("without a join token the gateway's fingerprint must be given")
        return pinned
    if pinned is not None and pinned != join_token.fingerprint:
        raise ValueError("the join token belongs to another gateway than the one pinned")
    return join_token.fingerprint
