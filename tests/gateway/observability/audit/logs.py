"""Logs to look at: written by the product, read and damaged by tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from gateway.observability.audit import AuditFiles, AuditReport, verify
from gateway.observability.audit.records import AuditEntry, ChainHead
from gateway.observability.audit.segments import segment_names
from shared.identity import GatewayIdentity

DAY_S = 86_400.0
NOON_S = 1_795_262_400.0
"""2026-11-21T12:00:00Z."""


def entries(count: int, *, at_s: float = NOON_S, kind: str = "test") -> list[AuditEntry]:
    return [AuditEntry(at_s, kind, {"n": number}) for number in range(count)]


def append(files: AuditFiles, entries: Sequence[AuditEntry], wall_s: float) -> ChainHead:
    """Append ``entries`` alone, as a process that takes up no acts."""
    with files.held(wall_s) as appender:
        return appender.append(entries, wall_s, appender.head.taken)


def records(directory: Path) -> list[dict[str, Any]]:
    """Every whole line, the oldest first."""
    texts = [(directory / name).read_bytes() for name in segment_names(directory)]
    return [orjson.loads(line) for text in texts for line in text.rpartition(b"\n")[0].splitlines()]


def kinds(directory: Path) -> list[str]:
    return [record["kind"] for record in records(directory)]


def verified(files: AuditFiles, identity: GatewayIdentity) -> AuditReport:
    return verify(files.directory, [identity.public_key])
