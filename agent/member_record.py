"""What an agent keeps of its membership on disk: its name, whom it trusts, its certificate."""

import base64
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from shared.errors import GatewayUntrusted, TrunklineError
from shared.identity import Succession
from shared.identity.keys import FINGERPRINT_BYTES, gateway_id

FORMER = 8
"""Former names and former keys of the gateway that are remembered."""


class MembershipError(TrunklineError):
    """The agent cannot know who it is. The message says what to do."""


@dataclass(frozen=True, slots=True)
class FormerKey:
    """A key that the gateway had: it counts until ``until_s`` (seconds since 1970) and stays known."""

    fingerprint: bytes
    until_s: float


@dataclass(frozen=True, slots=True)
class Record:
    """What ``membership.json`` says."""

    name: str
    fingerprint: bytes
    """Of the gateway's key: the newest one heard of."""
    certificate: bytes
    former_names: tuple[str, ...] = ()
    former_keys: tuple[FormerKey, ...] = ()

    def pins(self, wall_s: float) -> tuple[bytes, ...]:
        """Fingerprints of the keys that count now, the newest first."""
        former = (each.fingerprint for each in self.former_keys if wall_s < each.until_s)
        return (self.fingerprint, *former)

    def knows(self, fingerprint: bytes) -> bool:
        """Whether the gateway has this key or had it."""
        return fingerprint in (self.fingerprint, *(each.fingerprint for each in self.former_keys))

    def renamed(self, name: str) -> "Record":
        """Under another name, which the operator of the gateway gave it."""
        if name == self.name:
            return self
        former = tuple(each for each in self.former_names if each not in (name, self.name))
        return replace(self, name=name, former_names=(self.name, *former)[:FORMER])

    def succeeded(self, succession: Succession) -> "Record":
        """With the gateway's next key; nothing changes when it is known already.

        Raises SignatureInvalid, and GatewayUntrusted when the word is not of the newest key known: a former
        one has no say any more.
        """
        succession.verify()
        if succession.new_fingerprint == self.fingerprint:
            return self
        if succession.old_fingerprint != self.fingerprint:
            raise GatewayUntrusted(
                f"another key was announced by {gateway_id(succession.old_fingerprint)}, which is not this "
                f"agent's gateway {gateway_id(self.fingerprint)}"
            )
        former = FormerKey(self.fingerprint, succession.until_s)
        keys = (former, *self.former_keys)[:FORMER]
        return replace(self, fingerprint=succession.new_fingerprint, former_keys=keys)

    @classmethod
    def read(cls, path: Path) -> "Record | None":
        """None when there is no such file. Raises :class:`MembershipError`."""
        try:
            value: Mapping[str, Any] = orjson.loads(path.read_bytes())
            record = cls(
                str(value["name"]),
                _fingerprint(value["gateway"]),
                base64.b64decode(value["certificate"], validate=True),
                tuple(map(str, value.get("former_names", ()))),
                tuple(
                    FormerKey(_fingerprint(each["gateway"]), float(each["until_s"]))
                    for each in value.get("former_keys", ())
                ),
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MembershipError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MembershipError(
                f"{path} is damaged: remove it and join again with a token (trunkline token create)"
            ) from error
        return record

    def write(self, path: Path) -> None:
        """Whole or not at all, mode 0600. Raises :class:`MembershipError`."""
        value: dict[str, Any] = {
            "name": self.name,
            "gateway": self.fingerprint.hex(),
            "certificate": base64.b64encode(self.certificate).decode(),
        }
        if self.former_names:
            value["former_names"] = self.former_names
        if self.former_keys:
            value["former_keys"] = [
                {"gateway": each.fingerprint.hex(), "until_s": each.until_s} for each in self.former_keys
            ]
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(orjson.dumps(value, option=orjson.OPT_INDENT_2))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise MembershipError(f"{path} cannot be written: {error.strerror}") from error


def _fingerprint(text: str) -> bytes:
    """Raises ValueError."""
    fingerprint = bytes.fromhex(text)
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes, not {len(fingerprint)}")
    return fingerprint
