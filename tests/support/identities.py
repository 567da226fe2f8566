"""Fixed keys, nonces and times, and whole handshakes made of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shared.handshake import AgentHandshake, GatewayHandshake, Hello, ResumeRequest
from shared.identity import (
    AgentCertificate,
    GatewayIdentity,
    JoinToken,
    issue_certificate,
    public_bytes,
)
from shared.protocol.frames import FrameType
from shared.protocol.peers import GatewayPeer

WALL_S = 1_800_000_000.0
"""2027-01-15 08:00 UTC."""
GATEWAY_NONCE = bytes(range(32))
AGENT_NONCE = bytes(range(32, 64))
NAME = "gpu-7"
SERIAL = 0x1122334455667788
GATEWAY_LIMITS = {"open_streams": 1024, "stream_window_bytes": 131_072}
AGENT_LIMITS = {"upload_window_bytes": 262_144}


def key_of(label: str) -> Ed25519PrivateKey:
    """The same key for the same label, in every run."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(label.encode()).digest())


GATEWAY = GatewayIdentity(key_of("gateway"))
OTHER_GATEWAY = GatewayIdentity(key_of("another gateway"))
NEXT_GATEWAY = GatewayIdentity(key_of("the gateway's next key"))
PROCESSES = (GatewayPeer("a", 3), GatewayPeer("b", 1, "wss://b.example"))
"""The processes of a gateway that has two."""
UNTIL_S = int(WALL_S) + 30 * 86_400
"""When the key before ``NEXT_GATEWAY`` counts no more."""
AGENT_KEY = key_of("agent")
TOKEN = JoinToken(bytes.fromhex("0011223344556677"), bytes(range(16)), GATEWAY.fingerprint)
"""As versions before there was a checksum made them."""
CHECKED_TOKEN = JoinToken(bytes.fromhex("62b362d458c3c35a"), bytes(range(16)), GATEWAY.fingerprint)


def certificate_of(
    name: str = NAME,
    key: Ed25519PrivateKey = AGENT_KEY,
    gateway: GatewayIdentity = GATEWAY,
    wall_s: float = WALL_S,
    serial: int = SERIAL,
) -> AgentCertificate:
    """A certificate issued at ``wall_s``."""
    return issue_certificate(gateway, name, public_bytes(key), serial, wall_s)


def gateway_side(
    gateway: GatewayIdentity = GATEWAY, nonce: bytes = GATEWAY_NONCE, process: GatewayPeer | None = None
) -> GatewayHandshake:
    return GatewayHandshake(gateway, nonce, GATEWAY_LIMITS, process=process)


def joining_agent(
    token: JoinToken = TOKEN, name: str = NAME, key: Ed25519PrivateKey = AGENT_KEY
) -> AgentHandshake:
    """An agent that dials for the first time."""
    return AgentHandshake(
        key, name, AGENT_NONCE, join_token=token, software="trunkline 0", limits=AGENT_LIMITS
    )


def enrolled_agent(
    certificate: AgentCertificate | None = None,
    name: str = NAME,
    key: Ed25519PrivateKey = AGENT_KEY,
    pinned: bytes = GATEWAY.fingerprint,
    session: ResumeRequest | None = None,
    optional: Sequence[str] = (),
) -> AgentHandshake:
    """An agent that holds a certificate, and asks for a session if there is one."""
    return AgentHandshake(
        key,
        name,
        AGENT_NONCE,
        (certificate or certificate_of(name, key)).der,
        pinned_fingerprint=pinned,
        software="trunkline 0",
        limits=AGENT_LIMITS,
        session=session,
        optional=optional,
    )


@dataclass(slots=True)
class Greeted:
    """A handshake up to a verified HELLO."""

    gateway: GatewayHandshake
    agent: AgentHandshake
    challenge: bytes
    hello_payload: bytes
    hello: Hello

    def answer_with_welcome(self, certificate_der: bytes | None) -> bytes:
        return self.gateway.welcome("s-1", 1, certificate_der, None, 10.0)


def greet(agent: AgentHandshake, gateway: GatewayHandshake | None = None, wall_s: float = WALL_S) -> Greeted:
    """Run CHALLENGE and HELLO. Raises what either side raises."""
    gateway = gateway or gateway_side()
    challenge = gateway.challenge()
    hello_payload = agent.receive_challenge(challenge)
    return Greeted(gateway, agent, challenge, hello_payload, gateway.receive_hello(hello_payload, wall_s))


FRAMES = {frame.name: frame for frame in FrameType if frame <= FrameType.REJECT}
