"""The agent's half of the handshake (PROTOCOL §8)."""

from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shared.handshake.messages import Welcome
from shared.identity import JoinToken


class AgentHandshake:
    """One handshake with one gateway, seen from the agent. Use once, in this order::

        send(HELLO, handshake.receive_challenge(payload))            # raises HandshakeError
        welcome = handshake.receive_answer(frame_type, payload, wall_s)   # raises HandshakeError

    Exactly one of ``certificate`` (DER, as the gateway issued it) and ``join_token`` is given.
    ``pinned_fingerprint`` is the SHA-256 of the gateway's public key (32 bytes); with a join token it may
    be None and is then the token's. ``nonce`` is 32 fresh random bytes. Raises ValueError for arguments
    that cannot make a HELLO (a bad name, both or neither credential, fingerprints that differ).
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
    ) -> None:
        raise NotImplementedError

    def receive_challenge(self, payload: bytes) -> bytes:
        """Check CHALLENGE and return the payload of HELLO.

        Raises HandshakeMalformed, GatewayUntrusted (another key than the pinned one), SignatureInvalid,
        or HandshakeRejected with VERSION when there is no common protocol version.
        """
        raise NotImplementedError

    def receive_answer(self, frame_type: int, payload: bytes, wall_s: float) -> Welcome:
        """Check WELCOME or REJECT, whichever came; ``wall_s`` is seconds since 1970.

        Raises HandshakeRejected with the gateway's code, reason and ``retry_after_s`` for a REJECT that
        verifies; HandshakeMalformed (any other frame type too), SignatureInvalid, or CertificateInvalid
        when the certificate delivered is not the pinned gateway's for our name and key.
        """
        raise NotImplementedError
