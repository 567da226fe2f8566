"""Secrets are encrypted with a key that is not in the store."""

from pathlib import Path

import pytest

from gateway.storage.errors import IdentityUnusable
from gateway.storage.secret_box import SecretBox


def test_what_was_sealed_is_read_under_its_own_name_only(tmp_path: Path) -> None:
    made: list[bool] = []
    box = SecretBox(tmp_path / "cluster.key", lambda: made.append(True))
    sealed = box.seal("acme", "whsec_secret")
    assert sealed.startswith("v1.")
    assert "secret" not in sealed
    assert sealed != box.seal("acme", "whsec_secret")
    assert box.read("acme", sealed) == "whsec_secret"
    assert made == [True]
    assert (tmp_path / "cluster.key").stat().st_mode & 0o077 == 0
    with pytest.raises(IdentityUnusable, match="was changed by somebody"):
        box.read("other", sealed)
    with pytest.raises(IdentityUnusable, match="was changed by somebody"):
        box.read("acme", sealed[:-6] + "AAAAA=")
    with pytest.raises(IdentityUnusable, match="later version"):
        box.read("acme", "v2" + sealed[2:])


def test_a_key_that_is_missing_or_another_is_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        SecretBox(tmp_path / name, lambda: None).seal("x", "y")
    sealed = SecretBox(tmp_path / "one").seal("acme", "text")
    with pytest.raises(IdentityUnusable, match="put that one back"):
        SecretBox(tmp_path / "two").read("acme", sealed)
    with pytest.raises(IdentityUnusable, match="there is no cluster key"):
        SecretBox(tmp_path / "three").seal("acme", "text")
    assert not (tmp_path / "three").exists()
