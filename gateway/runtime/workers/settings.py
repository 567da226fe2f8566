"""How many workers there are, what they are called, and each one's part of the settings."""

import os
import platform
import re
from pathlib import Path

from pydantic import SecretStr

from gateway.runtime.config.settings import MIB, Settings
from gateway.runtime.workers.role import WorkerRole

LIMITS_NAME = "limits.db"
"""In the state directory: where workers keep limits together, unless a server is named for that."""

MOST_WORKERS = 64

_BASE_CHARS = 44
"""Of what all workers' names begin with; a process's name has 48 at most."""


def worker_count(settings: Settings) -> int:
    """How many workers there are to be; with ``auto`` one for each core that this process may use."""
    if settings.workers != "auto":
        return settings.workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(MOST_WORKERS, cores or 1))


def process_names(settings: Settings, count: int, kept: str | None = None) -> list[str]:
    """What the workers are called, each the same at every start: after ``cluster.process``, or ``kept``, the
    name that the state directory keeps where other hosts' gateways have the same store, or after the host."""
    base = settings.cluster.process or kept or platform.node().partition(".")[0].lower()
    base = re.sub(r"[^a-z0-9._-]+", "-", base)[:_BASE_CHARS].lstrip("._-") or "gateway"
    return [f"{base}-{index}" for index in range(count)]


def worker_settings(settings: Settings, role: WorkerRole) -> Settings:
    """The settings of one worker: its name and its siblings', where limits are kept together, and its part of
    what the host has for all."""
    peers = [peer for peer in settings.cluster.peers if peer.partition("=")[0] != settings.cluster.process]
    cluster = settings.cluster.model_copy(
        update={"process": role.process, "peers": [*role.processes, *peers]}
    )
    shared = settings.shared or SecretStr(f"sqlite:///{Path(role.state).absolute() / LIMITS_NAME}")
    return _divided(settings, role.count).model_copy(
        update={
            "cluster": cluster,
            "shared": shared,
            "shared_processes": settings.shared_processes * role.count,
        }
    )


def _divided(settings: Settings, count: int) -> Settings:
    """Every worker's part of what bounds a host. What one request may need is not divided."""
    http, queue, dispatch = settings.http, settings.queue, settings.dispatch
    agents, reuse, audit = settings.agents, settings.reuse, settings.audit

    def part(whole: int, least: int = 1) -> int:
        return max(-(-whole // count), min(whole, least))

    body_bytes = 2 * http.body_bytes
    return settings.model_copy(
        update={
            "http": http.model_copy(
                update={
                    "buffer_bytes": part(http.buffer_bytes, max(MIB, body_bytes)),
                    "connections": part(http.connections),
                    "connections_per_ip": part(http.connections_per_ip),
                }
            ),
            "queue": queue.model_copy(
                update={
                    "max_requests": part(queue.max_requests),
                    "max_requests_total": part(queue.max_requests_total),
                    "max_body_bytes": part(queue.max_body_bytes, max(MIB, body_bytes)),
                }
            ),
            "dispatch": dispatch.model_copy(
                update={
                    "records_total_bytes": part(dispatch.records_total_bytes, dispatch.record_bytes),
                    "unread_bytes": part(dispatch.unread_bytes),
                    "unread_disk_bytes": part(dispatch.unread_disk_bytes),
                }
            ),
            "agents": agents.model_copy(update={"max_strangers": part(agents.max_strangers)}),
            "reuse": reuse.model_copy(
                update={
                    "cache_bytes": part(reuse.cache_bytes, max(MIB, 2 * reuse.entry_bytes)),
                    "entries": part(reuse.entries),
                }
            ),
            "audit": audit.model_copy(update={"buffer_records": part(audit.buffer_records, 100)}),
        }
    )
