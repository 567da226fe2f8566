"""``shared/protocol/vectors/handshake.json``: our code makes it, and it follows from PROTOCOL §8 alone.

``test_signatures_follow_the_specification`` uses nothing of ``shared.handshake``: what another
implementation would write.
"""

import base64
import hashlib
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shared.identity import JoinToken
from tests.support.handshake_vectors import PATH, build

VECTORS: dict[str, Any] = orjson.loads(PATH.read_bytes())
TYPES = {"CHALLENGE": 1, "HELLO": 2, "WELCOME": 3, "REJECT": 4}
conversations = pytest.mark.parametrize("conversation", VECTORS["conversations"], ids=lambda c: c["title"])


def octets(*path: str) -> bytes:
    value: Any = VECTORS
    for step in path:
        value = value[step]
    return bytes.fromhex(value)


def test_our_code_makes_these_bytes() -> None:
    assert build() == VECTORS


@conversations
def test_signatures_follow_the_specification(conversation: dict[str, Any]) -> None:
    transcript = b""
    for entry in conversation["frames"]:
        frame, payload = entry["frame"], bytes.fromhex(entry["payload"])
        signature, body = payload[:64], payload[64:]
        digest = hashlib.sha256(transcript).digest()
        signer = octets("agent" if frame == "HELLO" else "gateway", "public_key")
        message = b"trunkline.1 " + frame.encode() + b"\0" + digest + body
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, message)
        transcript += bytes([TYPES[frame]]) + len(payload).to_bytes(4, "big") + payload


def test_the_join_proof_follows_the_specification() -> None:
    challenge, hello = (
        bytes.fromhex(entry["payload"]) for entry in VECTORS["conversations"][0]["frames"][:2]
    )
    join_key_seed = hashlib.sha256(
        b"trunkline.1 JOIN KEY\0" + octets("join_token", "id") + octets("join_token", "secret")
    ).digest()
    join_key = Ed25519PrivateKey.from_private_bytes(join_key_seed)
    assert join_key.public_key().public_bytes_raw() == octets("join_token", "verifier")
    transcript = b"\x01" + len(challenge).to_bytes(4, "big") + challenge
    statement = (
        b"trunkline.1 JOIN\0"
        + hashlib.sha256(transcript).digest()
        + octets("agent", "public_key")
        + octets("agent", "nonce")
        + hashlib.sha256(VECTORS["agent"]["name"].encode()).digest()
    )
    join = orjson.loads(hello[64:])["join"]
    assert join["id"] == VECTORS["join_token"]["id"]
    join_key.public_key().verify(base64.b64decode(join["proof"]), statement)


def test_the_join_token_reads_as_specified() -> None:
    token = JoinToken.decode(VECTORS["join_token"]["text"])
    assert token.id == octets("join_token", "id")
    assert token.secret == octets("join_token", "secret")
    assert token.fingerprint == octets("gateway", "fingerprint")


def test_the_checksum_of_a_join_token_follows_the_specification() -> None:
    raw = base64.urlsafe_b64decode(VECTORS["join_token"]["checked"].removeprefix("tlj_"))
    digest = hashlib.sha256(b"trunkline.1 JOIN CHECK\0" + raw[9:]).digest()
    assert raw[1:9] == digest[:5] + b"\xc3\xc3\x5a"
    assert JoinToken.decode(VECTORS["join_token"]["checked"]).has_checksum


def test_the_announcement_of_the_next_key_follows_the_specification() -> None:
    told = VECTORS["succession"]
    command = told["command"]["succession"]
    old, new = octets("gateway", "public_key"), octets("succession", "next_public_key")
    statement = b"trunkline.1 SUCCESSION\0" + old + new + told["until_s"].to_bytes(8, "big")
    Ed25519PublicKey.from_public_bytes(old).verify(octets("succession", "signature"), statement)
    assert hashlib.sha256(new).hexdigest()[:16] == told["next_id"]
    assert [base64.b64decode(command[name]) for name in ("key", "next", "signature")] == [
        old,
        new,
        octets("succession", "signature"),
    ]
    assert (command["until_s"], told["command"]["verb"]) == (told["until_s"], "renew")
