"""Makes ``shared/protocol/vectors/handshake.json``: ``python -m tests.support.handshake_vectors``.

Everything in it follows from fixed keys, nonces and times, so the file changes only with the protocol.
"""

from pathlib import Path
from typing import Any

import orjson

from shared.handshake import Renewal
from shared.identity import KeySuccession, public_bytes
from shared.protocol.errors import ErrorCode
from tests.support.identities import (
    AGENT_KEY,
    AGENT_NONCE,
    CHECKED_TOKEN,
    GATEWAY,
    GATEWAY_NONCE,
    NAME,
    NEXT_GATEWAY,
    PROCESSES,
    SERIAL,
    TOKEN,
    UNTIL_S,
    WALL_S,
    certificate_of,
    enrolled_agent,
    gateway_side,
    greet,
    joining_agent,
)

PATH = Path(__file__).parents[2] / "shared" / "protocol" / "vectors" / "handshake.json"


def build() -> dict[str, Any]:
    """The vectors, bytes as hex."""
    certificate = certificate_of()
    return {
        "note": "PROTOCOL §8. Bytes are hex. Private keys are Ed25519 seeds, for tests only.",
        "wall_s": int(WALL_S),
        "gateway": {
            "private_key": GATEWAY.private_key.private_bytes_raw().hex(),
            "public_key": GATEWAY.public_key.hex(),
            "fingerprint": GATEWAY.fingerprint.hex(),
            "id": GATEWAY.id,
            "nonce": GATEWAY_NONCE.hex(),
        },
        "agent": {
            "private_key": AGENT_KEY.private_bytes_raw().hex(),
            "public_key": public_bytes(AGENT_KEY).hex(),
            "name": NAME,
            "nonce": AGENT_NONCE.hex(),
        },
        "join_token": {
            "id": TOKEN.id.hex(),
            "secret": TOKEN.secret.hex(),
            "text": TOKEN.encode(),
            "verifier": TOKEN.verifier().hex(),
            "checked": CHECKED_TOKEN.encode(),
        },
        "certificate": {
            "serial": SERIAL,
            "not_before_s": certificate.not_before_s,
            "not_after_s": certificate.not_after_s,
            "der": certificate.der.hex(),
        },
        "conversations": [_enrolment(), _return(), _refusal(), _process()],
        "succession": _succession(),
    }


def _enrolment() -> dict[str, Any]:
    greeted = greet(joining_agent())
    welcome = greeted.answer_with_welcome(certificate_of().der)
    return _conversation("an agent joins", greeted.challenge, greeted.hello_payload, "WELCOME", welcome)


def _return() -> dict[str, Any]:
    greeted = greet(enrolled_agent())
    welcome = greeted.answer_with_welcome(None)
    return _conversation("an agent returns", greeted.challenge, greeted.hello_payload, "WELCOME", welcome)


def _refusal() -> dict[str, Any]:
    greeted = greet(enrolled_agent())
    reject = greeted.gateway.reject(ErrorCode.REVOKED, "agent gpu-7 was revoked", 1.5)
    return _conversation("an agent is refused", greeted.challenge, greeted.hello_payload, "REJECT", reject)


def _process() -> dict[str, Any]:
    greeted = greet(enrolled_agent(), gateway_side(process=PROCESSES[0]))
    welcome = greeted.gateway.welcome("s-1", 1, None, None, 10.0, peers=PROCESSES)
    title = "an agent returns to one process of two"
    return _conversation(title, greeted.challenge, greeted.hello_payload, "WELCOME", welcome)


def _succession() -> dict[str, Any]:
    succession = KeySuccession.sign(GATEWAY, NEXT_GATEWAY.public_key, UNTIL_S)
    renewal = Renewal(1, certificate_of(gateway=NEXT_GATEWAY).der, succession)
    return {
        "next_private_key": NEXT_GATEWAY.private_key.private_bytes_raw().hex(),
        "next_public_key": NEXT_GATEWAY.public_key.hex(),
        "next_id": NEXT_GATEWAY.id,
        "until_s": UNTIL_S,
        "signature": succession.signature.hex(),
        "command": renewal.to_dict(),
    }


def _conversation(title: str, challenge: bytes, hello: bytes, answer: str, payload: bytes) -> dict[str, Any]:
    return {
        "title": title,
        "frames": [
            {"frame": "CHALLENGE", "payload": challenge.hex()},
            {"frame": "HELLO", "payload": hello.hex()},
            {"frame": answer, "payload": payload.hex()},
        ],
    }


if __name__ == "__main__":
    PATH.write_bytes(orjson.dumps(build(), option=orjson.OPT_INDENT_2) + b"\n")
