"""The gateway's keys in files beside the database, which knows which of them counts.

``gateway.key`` is the key. While it is being changed the next one is in ``gateway.next.key``; the one before
stays in ``gateway.previous.key`` for as long as it counts (PROTOCOL §8.12). The database says by fingerprint
which key is which: a change is over with its transaction, and a process that dies in the middle leaves
nothing undecided.
"""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.storage.errors import IdentityUnusable, StateUnwritable
from shared.identity import (
    GatewayIdentity,
    GatewayKeys,
    KeyFileError,
    create_key_file,
    load_key,
    save_key,
)

KEY_NAME = "gateway.key"
NEXT_NAME = "gateway.next.key"
PREVIOUS_NAME = "gateway.previous.key"


class GatewayKeyHolder(ABC):
    """Where the private keys are. Facts are rows of that table. Every method raises StateError."""

    fact_prefix: str | None = None
    """Facts whose names begin so are the holder's."""

    @abstractmethod
    def make_first(self) -> tuple[GatewayIdentity, Mapping[str, str]]:
        """The first key, and facts to write."""

    @abstractmethod
    def found(self, facts: Mapping[str, str]) -> dict[str, GatewayIdentity]:
        """Every key there is, by fingerprint."""

    def held(self, facts: Mapping[str, str]) -> set[str]:
        """The fingerprints of every key there is. Opens no key where the holder's facts name them."""
        return set(self.found(facts))

    @abstractmethod
    def keep_next(self, key: Ed25519PrivateKey) -> Mapping[str, str]:
        """Keep a key that is to count from the end of the transaction on; facts to write in it."""

    @abstractmethod
    def settle(self, keys: GatewayKeys) -> None:
        """These count, and no others, under the database's write lock."""

    @abstractmethod
    def unusable(self, known: str) -> IdentityUnusable:
        """Why the key with this fingerprint, which counts, is not among those found."""


class GatewayKeyFiles(GatewayKeyHolder):
    """Files in the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def make_first(self) -> tuple[GatewayIdentity, Mapping[str, str]]:
        with _key_file_errors():
            return GatewayIdentity(create_key_file(self._state_dir / KEY_NAME)), {}

    def found(self, facts: Mapping[str, str]) -> dict[str, GatewayIdentity]:
        found = (self._read(name) for name in (KEY_NAME, NEXT_NAME, PREVIOUS_NAME))
        return {each.fingerprint.hex(): each for each in found if each is not None}

    def keep_next(self, key: Ed25519PrivateKey) -> Mapping[str, str]:
        with _key_file_errors():
            save_key(self._state_dir / NEXT_NAME, key)
        return {}

    def settle(self, keys: GatewayKeys) -> None:
        """Give the files the names of what they hold, and remove what does not count. Where the database is
        one of before a change, the key that counts is in the file of the one before."""
        key, following, before = (self._state_dir / name for name in (KEY_NAME, NEXT_NAME, PREVIOUS_NAME))
        try:
            with _key_file_errors():
                if keys.previous is not None:
                    save_key(before, keys.previous.private_key)
                if _is(self._read(NEXT_NAME), keys.current):
                    os.replace(following, key)
                elif not _is(self._read(KEY_NAME), keys.current):
                    save_key(key, keys.current.private_key)
                following.unlink(missing_ok=True)
            if keys.previous is None:
                before.unlink(missing_ok=True)
            for unfinished in self._state_dir.glob(".gateway*.key.*"):  # of processes that were killed
                unfinished.unlink(missing_ok=True)
        except OSError as error:
            raise StateUnwritable(
                f"the key files in {self._state_dir} cannot be put in order: {error.strerror}"
            ) from error

    def _read(self, name: str) -> GatewayIdentity | None:
        """The key in a file; None: there is no such file."""
        with _key_file_errors():
            try:
                return GatewayIdentity(load_key(self._state_dir / name))
            except KeyFileError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    return None
                raise

    def unusable(self, known: str) -> IdentityUnusable:
        path = self._state_dir / KEY_NAME
        if not path.exists():
            return IdentityUnusable(
                f"the gateway's key {path} is gone, and agents trust no other ({known[:16]}…): restore it "
                "from a backup, or move gateway.db away too to begin anew (every agent must join again)"
            )
        return IdentityUnusable(
            f"{path} is another key than this database belongs to ({known[:16]}…): "
            "restore key and database from the same backup"
        )


def _is(found: GatewayIdentity | None, key: GatewayIdentity) -> bool:
    return found is not None and found.fingerprint == key.fingerprint


@contextlib.contextmanager
def _key_file_errors() -> Iterator[None]:
    """What is wrong with a key's file is raised as IdentityUnusable."""
    try:
        yield
    except KeyFileError as error:
        raise IdentityUnusable(str(error)) from error
