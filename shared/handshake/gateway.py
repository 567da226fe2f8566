"""The gateway's half of the handshake (PROTOCOL §8)."""

from collections.abc import Mapping

from shared.errors import ErrorCode
from shared.handshake.messages import Hello
from shared.identity import GatewayIdentity


class GatewayHandshake:
    """One handshake with one agent, seen from the gateway. Use once, in this order::

        send(CHALLENGE, handshake.challenge())
        hello = handshake.receive_hello(payload, wall_s)      # raises HandshakeError
        ... admission: database, revocation, verify_join ...
        send(WELCOME, handshake.welcome(...))   or   send(REJECT, handshake.reject(...))

    ``nonce`` is 32 fresh random bytes. ``limits`` is what WELCOME announces unless it is given others.
    After ``receive_hello`` raised, ``reject`` may still be called to tell the agent why; before any
    HELLO was received there is nothing to reject: close the connection.
    """

    def __init__(self, identity: GatewayIdentity, nonce: bytes, limits: Mapping[str, int]) -> None:
        raise NotImplementedError

    @property
    def hello(self) -> Hello | None:
        """The HELLO received and verified, or None until then."""
        raise NotImplementedError

    def challenge(self) -> bytes:
        """The payload of CHALLENGE, to be sent first."""
        raise NotImplementedError

    def receive_hello(self, payload: bytes, wall_s: float) -> Hello:
        """Check a HELLO's payload at wall-clock time ``wall_s`` (seconds since 1970).

        Raises HandshakeMalformed (too long, no JSON, fields missing or out of bounds, a second HELLO),
        SignatureInvalid, CertificateInvalid, or HandshakeRejected with VERSION.
        """
        raise NotImplementedError

    def verify_join(self, verifier: bytes) -> bool:
        """Whether the HELLO's join proof was made with the secret of the token that has this verifier.

        ``verifier`` is ``JoinToken.verifier()`` as stored when the token was created. False too when the
        HELLO carries no join. Call after ``receive_hello``.
        """
        raise NotImplementedError

    def welcome(
        self,
        session_id: str,
        generation: int,
        certificate_der: bytes | None,
        limits: Mapping[str, int] | None,
        heartbeat_s: float,
        resume_window_s: float = 0.0,
    ) -> bytes:
        """The payload of WELCOME. ``limits`` None stands for those given at construction."""
        raise NotImplementedError

    def reject(self, code: ErrorCode, reason: str, retry_after_s: float | None = None) -> bytes:
        """The payload of REJECT. ``reason`` is for the agent's operator to read; longer ones are cut.

        ``retry_after_s`` None: trying again as is cannot help.
        """
        raise NotImplementedError
