"""The handshake that opens every tunnel, sans-I/O (PROTOCOL §8).

Four frames: the gateway sends CHALLENGE, the agent answers HELLO, the gateway ends with WELCOME or
REJECT. Each is a signature over everything said so far, so both sides know whom they talk to whatever
terminated the TLS between them. Nothing here reads a clock, a file or a source of randomness: nonces,
wall-clock times and keys are arguments.
"""

from shared.handshake.agent import AgentHandshake
from shared.handshake.gateway import GatewayHandshake
from shared.handshake.messages import NONCE_BYTES, Challenge, Hello, JoinProof, ResumeRequest, Welcome
from shared.handshake.renewal import Renewal

__all__ = [
    "NONCE_BYTES",
    "AgentHandshake",
    "Challenge",
    "GatewayHandshake",
    "Hello",
    "JoinProof",
    "Renewal",
    "ResumeRequest",
    "Welcome",
]
