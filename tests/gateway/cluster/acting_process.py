"""Processes that write a line each time they act as the owner: ``python -m``, with a place for the state, the
store's address or "", the file for the lines, and their names. Leases are short.

Each is a fork of this process, says ``ready NAME PID`` in a line of its own on standard output, which all of
them have, and is killed when standard input ends. One that cannot begin says ``failed NAME``.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import structlog

from gateway.cluster import member, ownership
from gateway.cluster.directory import ProcessDirectory
from gateway.cluster.placement_demands import PlacementDemands
from gateway.domain.running_clock import running_s
from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from gateway.storage.processes import ProcessRecord
from shared.protocol.peers import GatewayPeer

TTL_S, MARGIN_S, BEAT_S = 2.0, 0.5, 0.3
ACT_S = 0.01


def _say(words: str) -> None:
    """In one write: what is printed may come in pieces, between which others write."""
    os.write(sys.stdout.fileno(), f"{words}\n".encode())


async def _act(store: Store, name: str, lines: Path) -> None:
    directory = ProcessDirectory(GatewayPeer(name, 1))
    record = ProcessRecord(name, 1, None, "host", "1", 0.0)
    made = member.ClusterMember(
        record, directory, store.processes, store.ownership, PlacementDemands(running_s), beat_s=BEAT_S
    )
    made.begin()
    running = asyncio.create_task(made.run())
    _say(f"ready {name} {os.getpid()}")
    with lines.open("a", buffering=1) as file:
        while not running.done():
            if made.ownership.owns:
                file.write(f"{running_s()} {name} {made.ownership.epoch}\n")
            await asyncio.sleep(ACT_S)


def _run(state: str, url: str, lines: str, name: str) -> None:
    with Store.open(Path(state), address=StoreAddress(url) if url else None) as store:
        asyncio.run(_act(store, name, Path(lines)))


def main() -> None:
    state, url, lines, *names = sys.argv[1:]
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    ownership.TTL_S = member.TTL_S = TTL_S  # type: ignore[attr-defined]
    ownership.MARGIN_S = MARGIN_S
    forks = []
    for name in names:
        fork = os.fork()
        if fork == 0:
            try:
                _run(state, url, lines, name)
            finally:
                _say(f"failed {name}")
            sys.exit(1)
        forks.append(fork)
    sys.stdin.read()
    for fork in forks:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)


if __name__ == "__main__":
    main()
