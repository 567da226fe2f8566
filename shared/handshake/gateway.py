"""The gateway's half of the handshake (PROTOCOL §8)."""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from math import inf

from shared.handshake.messages import (
    NONCE_BYTES,
    SUPPORTED_VERSIONS,
    Challenge,
    Hello,
    HelloClaims,
    WelcomeTerms,
    join_statement,
    reject_body,
)
from shared.handshake.transcript import Transcript, body_of
from shared.identity import AgentCertificate, GatewayIdentity, verify_certificate
from shared.identity.keys import signature_holds
from shared.protocol.errors import ErrorCode, HandshakeError, HandshakeMalformed, HandshakeRejected
from shared.protocol.frames import FrameType
from shared.protocol.peers import ANY_CAPABILITIES, CAPABILITIES, DEMAND, UPLINK, GatewayPeer


class GatewayHandshakeState(Enum):
    """How far the gateway's half has come (PROTOCOL §8.7)."""

    START = auto()
    CHALLENGED = auto()
    """CHALLENGE is out."""
    GREETED = auto()
    """A HELLO verified."""
    REFUSED = auto()
    """A HELLO did not verify."""
    WELCOMED = auto()
    REJECTED = auto()


NEXT_STATES: dict[GatewayHandshakeState, frozenset[GatewayHandshakeState]] = {
    GatewayHandshakeState.START: frozenset({GatewayHandshakeState.CHALLENGED}),
    GatewayHandshakeState.CHALLENGED: frozenset(
        {GatewayHandshakeState.GREETED, GatewayHandshakeState.REFUSED}
    ),
    GatewayHandshakeState.GREETED: frozenset(
        {GatewayHandshakeState.WELCOMED, GatewayHandshakeState.REJECTED}
    ),
    GatewayHandshakeState.REFUSED: frozenset({GatewayHandshakeState.REJECTED}),
}
"""What is not here is a defect of our own, or a HELLO out of turn."""


class GatewayHandshake:
    """One handshake with one agent, seen from the gateway. Use once, in this order::

        send(CHALLENGE, handshake.challenge())
        hello = handshake.receive_hello(payload, wall_s)      # raises HandshakeError
        ... admission: database, revocation, verify_join ...
        send(WELCOME, handshake.welcome(...))   or   send(REJECT, handshake.reject(...))

    ``nonce`` is 32 fresh random bytes. ``limits`` is what WELCOME announces unless it is given others.
    ``also_issued_by`` are public keys of this gateway's whose certificates are good beside those of
    ``identity``: while its key changes (PROTOCOL §8.12). ``process`` is this process of a gateway that has
    several; None where it is the only one.
    After ``receive_hello`` raised, ``reject`` may still be called to tell the agent why; before any
    HELLO was received there is nothing to reject (``can_reject`` is False): close the connection.
    """

    def __init__(
        self,
        identity: GatewayIdentity,
        nonce: bytes,
        limits: Mapping[str, int],
        also_issued_by: Sequence[bytes] = (),
        process: GatewayPeer | None = None,
    ) -> None:
        assert len(nonce) == NONCE_BYTES
        self.identity = identity
        """The key that this conversation is signed with; what WELCOME brings was issued by it."""
        self._also_issued_by = also_issued_by
        self._nonce = nonce
        self._limits = limits
        self._process = process
        self._state = GatewayHandshakeState.START
        self._transcript = Transcript()
        self._challenge_digest = b""
        self.hello: Hello | None = None
        """The HELLO received and verified, or None until then."""

    @property
    def can_reject(self) -> bool:
        """True from the first HELLO, good or bad, until it was answered."""
        return GatewayHandshakeState.REJECTED in NEXT_STATES.get(self._state, ())

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What both sides can do; nothing before HELLO. A gateway that is one process can do little of it,
        but tells an agent that is a gateway what waits."""
        if self.hello is None:
            return ()
        own: tuple[str, ...] = (*CAPABILITIES, *ANY_CAPABILITIES)
        if self._process is None:
            own = (DEMAND, *ANY_CAPABILITIES) if UPLINK in self.hello.capabilities else ANY_CAPABILITIES
        return tuple(each for each in own if each in self.hello.capabilities)

    def challenge(self) -> bytes:
        """The payload of CHALLENGE, to be sent first."""
        self._move(GatewayHandshakeState.CHALLENGED)
        process, incarnation = None, 0
        if self._process is not None:
            process, incarnation = self._process.process, self._process.incarnation
        identity = self.identity
        challenge = Challenge(
            SUPPORTED_VERSIONS, identity.id, identity.public_key, self._nonce, process, incarnation
        )
        payload = self._transcript.seal(FrameType.CHALLENGE, challenge.to_body(), self.identity.sign)
        self._challenge_digest = self._transcript.digest()
        return payload

    def receive_hello(self, payload: bytes, wall_s: float) -> Hello:
        """Check a HELLO's payload at wall-clock time ``wall_s`` (seconds since 1970).

        Raises HandshakeMalformed (too long, no JSON, fields missing or out of bounds, a second HELLO),
        SignatureInvalid, CertificateInvalid, CertificateOutOfDate, or HandshakeRejected with VERSION.
        """
        if self._state is not GatewayHandshakeState.CHALLENGED:
            raise HandshakeMalformed("HELLO out of turn")
        try:
            hello = self._check(payload, wall_s)
        except HandshakeError:
            self._move(GatewayHandshakeState.REFUSED)
            raise
        finally:
            self._transcript.append(FrameType.HELLO, payload)
        self._move(GatewayHandshakeState.GREETED)
        self.hello = hello
        return hello

    def verify_join(self, verifier: bytes) -> bool:
        """Whether the HELLO's join proof was made with the secret of the token that has this verifier.

        ``verifier`` is ``JoinToken.verifier()`` as stored when the token was created. False too when the
        HELLO carries no join. Call after ``receive_hello``.
        """
        hello = self.hello
        assert hello is not None
        if hello.join is None:
            return False
        statement = join_statement(self._challenge_digest, hello.public_key, hello.nonce, hello.name)
        return signature_holds(verifier, hello.join.proof, statement)

    def welcome(
        self,
        session_id: str,
        generation: int,
        certificate_der: bytes | None,
        limits: Mapping[str, int] | None,
        heartbeat_s: float,
        resume_window_s: float = 0.0,
        received: int | None = None,
        peers: Sequence[GatewayPeer] = (),
    ) -> bytes:
        """The payload of WELCOME. ``limits`` None stands for those given at construction, ``received`` None
        for a new session. ``peers`` are all processes of the gateway, where it has several."""
        self._move(GatewayHandshakeState.WELCOMED)
        terms = WelcomeTerms(
            session_id=session_id,
            generation=generation,
            limits=dict(self._limits if limits is None else limits),
            certificate=certificate_der,
            heartbeat_s=heartbeat_s,
            resume_window_s=resume_window_s,
            received=received,
            capabilities=self.capabilities,
            peers=tuple(peers),
        )
        return self._transcript.seal(FrameType.WELCOME, terms.to_body(), self.identity.sign)

    def reject(self, code: ErrorCode, reason: str, retry_after_s: float | None = None) -> bytes:
        """The payload of REJECT. ``reason`` is for the agent's operator to read; longer ones are cut.

        ``retry_after_s`` None: trying again as is cannot help.
        """
        self._move(GatewayHandshakeState.REJECTED)
        body = reject_body(code, reason, retry_after_s)
        return self._transcript.seal(FrameType.REJECT, body, self.identity.sign)

    def _check(self, payload: bytes, wall_s: float) -> Hello:
        claims = HelloClaims.from_body(body_of(payload))
        if claims.version not in SUPPORTED_VERSIONS:
            offered = ", ".join(map(str, SUPPORTED_VERSIONS))
            raise HandshakeRejected(
                ErrorCode.VERSION, f"this gateway speaks protocol version {offered}, not {claims.version}"
            )
        self._transcript.verify(FrameType.HELLO, payload, claims.public_key)
        return Hello.of(claims, self._check_certificate(claims, wall_s))

    def _check_certificate(self, claims: HelloClaims, wall_s: float) -> AgentCertificate | None:
        if claims.certificate is None:
            return None
        certificate = verify_certificate(
            claims.certificate,
            self.identity.public_key,
            claims.name,
            claims.public_key,
            also_issued_by=self._also_issued_by,
        )
        # This gateway made it: if it is of the future, then by a clock that has been put right since.
        certificate.check_dates(wall_s, early_s=inf)
        return certificate

    def _move(self, state: GatewayHandshakeState) -> None:
        assert state in NEXT_STATES.get(self._state, ()), (self._state, state)
        self._state = state
