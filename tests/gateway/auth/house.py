"""A gateway's store and directory, and agents that meet them in whole handshakes."""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.auth import AdmittedAgent, AgentDirectory
from gateway.storage import Store
from shared.handshake import AgentHandshake, GatewayHandshake, Welcome
from shared.identity import JoinToken
from shared.protocol.errors import ErrorCode, HandshakeRejected
from shared.protocol.frames import FrameType
from tests.support.identities import key_of

NOW_S = 1_800_000_000.0
DAY_S = 86_400.0


@dataclass
class House:
    """A gateway with a store, and the time."""

    store: Store
    directory: AgentDirectory
    wall_s: float = NOW_S

    def token(self, uses: int = 1, models: tuple[str, ...] = ("*",)) -> JoinToken:
        return self.store.tokens.create(DAY_S, uses, models, {"region": "eu"}, self.wall_s)[0]

    def meet(self, agent: AgentHandshake) -> tuple[AdmittedAgent, Welcome]:
        """A whole handshake. Raises HandshakeRejected as the agent reads it."""
        keys = self.store.identity.keys
        handshake = GatewayHandshake(
            keys.choose(agent.gateways, self.wall_s), secrets.token_bytes(32), {}, keys.trusted(self.wall_s)
        )
        hello = handshake.receive_hello(agent.receive_challenge(handshake.challenge()), self.wall_s)
        try:
            admitted = self.directory.admit(hello, handshake, self.wall_s)
        except HandshakeRejected as error:
            payload = handshake.reject(error.code, error.reason, error.retry_after_s)
            agent.receive_answer(FrameType.REJECT, payload, self.wall_s)
            raise AssertionError("unreachable") from error
        payload = handshake.welcome("s", 1, admitted.certificate_der, None, 10.0)
        return admitted, agent.receive_answer(FrameType.WELCOME, payload, self.wall_s)

    def join(
        self, token: JoinToken, name: str = "gpu-7", key: Ed25519PrivateKey | None = None
    ) -> tuple[AdmittedAgent, bytes]:
        """Enrol an agent; what became of it and its certificate."""
        handshake = AgentHandshake(key or key_of(name), name, secrets.token_bytes(32), join_token=token)
        admitted, welcome = self.meet(handshake)
        assert welcome.certificate is not None
        return admitted, welcome.certificate.der

    def come_back(
        self,
        certificate: bytes,
        name: str = "gpu-7",
        key: Ed25519PrivateKey | None = None,
        pinned: bytes | None = None,
    ) -> tuple[AdmittedAgent, Welcome]:
        pinned = pinned or self.store.gateway_identity.fingerprint
        nonce = secrets.token_bytes(32)
        return self.meet(
            AgentHandshake(key or key_of(name), name, nonce, certificate, pinned_fingerprint=pinned)
        )


@contextlib.contextmanager
def rejected(code: ErrorCode, reason: str) -> Iterator[None]:
    with pytest.raises(HandshakeRejected, match=reason) as caught:
        yield
    assert caught.value.code is code
