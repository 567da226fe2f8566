"""Key files and fingerprints."""

import hashlib
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from shared.identity import (
    KeyFileError,
    create_key_file,
    generate_key,
    load_key,
    public_bytes,
    save_key,
)
from tests.support.identities import GATEWAY, key_of
from tests.support.race import race


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_saved_key_loads_as_the_same_key(tmp_path: Path) -> None:
    key = generate_key()
    save_key(tmp_path / "agent.key", key)
    assert public_bytes(load_key(tmp_path / "agent.key")) == public_bytes(key)


def test_a_key_file_is_for_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        save_key(tmp_path / "agent.key", generate_key())
    finally:
        os.umask(old)
    assert mode_of(tmp_path / "agent.key") == 0o600


def test_saving_replaces_the_key_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.key"
    save_key(path, key_of("old"))
    save_key(path, key_of("new"))
    assert public_bytes(load_key(path)) == public_bytes(key_of("new"))
    assert list(tmp_path.iterdir()) == [path]


def test_creating_a_key_where_one_is_loads_that_one(tmp_path: Path) -> None:
    first = create_key_file(tmp_path / "agent.key")
    second = create_key_file(tmp_path / "agent.key")
    assert public_bytes(first) == public_bytes(second)
    assert mode_of(tmp_path / "agent.key") == 0o600
    assert list(tmp_path.iterdir()) == [tmp_path / "agent.key"]


def test_processes_that_create_a_key_at_once_agree_on_it(tmp_path: Path) -> None:
    printed = race(
        "from pathlib import Path; from shared.identity import create_key_file, public_bytes",
        "print(public_bytes(create_key_file(Path(sys.argv[1]))).hex())",
        str(tmp_path / "agent.key"),
    )
    assert len(set(printed)) == 1


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "agent.key"
    save_key(path, generate_key())
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"chmod 600 {path}"):
        load_key(path)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"agent\.key: No such file"):
        load_key(tmp_path / "agent.key")


def test_a_key_cannot_be_saved_where_there_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot write"):
        save_key(tmp_path / "nowhere" / "agent.key", generate_key())


@pytest.mark.parametrize("content", [b"", b"rubbish", b"-----BEGIN PRIVATE KEY-----\n\xff\n"])
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent.key"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match="PEM private key"):
        load_key(path)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.key"
    path.touch(0o600)
    path.write_bytes(
        X25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(KeyFileError, match="another kind"):
        load_key(path)


def test_a_gateways_id_is_the_head_of_its_keys_sha256() -> None:
    assert GATEWAY.fingerprint == hashlib.sha256(GATEWAY.public_key).digest()
    assert GATEWAY.id == GATEWAY.fingerprint.hex()[:16]


def test_an_identity_does_not_print_its_key() -> None:
    assert GATEWAY.private_key.private_bytes_raw().hex() not in repr(GATEWAY)
