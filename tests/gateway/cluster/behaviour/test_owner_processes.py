"""Processes that are killed and frozen: another one owns soon, and never two at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import select

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store, schema
from tests.gateway.cluster.acting_process import BEAT_S, TTL_S

SLACK_S = 3.0
"""For a busy machine."""


class Site:
    def __init__(self, state: Path, address: StoreAddress | None, lines: Path, opened: ExitStack) -> None:
        self._store = opened.enter_context(Store.open(state, address=address))
        self._where = [str(state), "" if address is None else address.url, str(lines)]
        self._lines = lines
        self._opened = opened
        self._processes: dict[str, int] = {}

    def start(self, *names: str) -> None:
        program = [sys.executable, "-m", "tests.gateway.cluster.acting_process"]
        line, pipe = [*program, *self._where, *names], subprocess.PIPE
        started = subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True)
        self._opened.enter_context(started)  # its standard input is closed, and it ends with its forks
        assert started.stdout is not None
        while self._processes.keys() != set(names):
            said = started.stdout.readline()
            assert said, "it has ended"
            match said.split():
                case "ready", name, pid:
                    self._processes[name] = int(pid)
                case _:
                    raise AssertionError(said)

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self._processes[name], number)

    def freeze(self, name: str) -> None:
        """Not while it holds the lock of the row, which a server ends after seconds and a file never."""
        with self._store.database.write_concurrently() as connection:
            connection.execute(select(schema.leases).with_for_update())
            self.signal(name, signal.SIGSTOP)

    def acts(self) -> list[tuple[float, str, int]]:
        """When who acted, by which epoch, in the order of time."""
        lines = [line.split() for line in self._lines.read_text().splitlines()]
        return sorted((float(at), name, int(epoch)) for at, name, epoch in (x for x in lines if len(x) == 3))

    def owner(self, other_than: str = "", within_s: float = TTL_S + BEAT_S + SLACK_S) -> str:
        """Who acts next, another than ``other_than``."""
        began, until_s = len(self.acts()), time.monotonic() + within_s
        while time.monotonic() < until_s:
            for _, name, _ in self.acts()[began:]:
                if name != other_than:
                    return name
            time.sleep(0.05)
        raise AssertionError(f"nobody but {other_than!r} has acted")


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    address = request.getfixturevalue("postgres_address") if request.param == "postgres" else None
    lines = tmp_path / "acts"
    lines.touch()
    with ExitStack() as opened:
        yield Site(tmp_path / "state", address, lines, opened)


def test_one_is_killed_and_one_frozen_and_no_two_act_at_once(site: Site) -> None:
    site.start("a", "b", "c")
    first = site.owner()
    site.signal(first, signal.SIGKILL)
    second = site.owner(other_than=first)
    site.freeze(second)
    third = site.owner(other_than=second)
    site.signal(second, signal.SIGCONT)
    assert site.owner() == third, "the one that was frozen acts no more"
    site.signal(third, signal.SIGKILL)
    assert site.owner(other_than=third) == second
    acts = site.acts()
    turns = [acts[0], *(act for before, act in pairwise(acts) if before[2] != act[2])]
    assert [name for _, name, _ in turns] == [first, second, third, second]
    epochs = [epoch for _, _, epoch in acts]
    assert epochs == sorted(epochs), "an act of an earlier owner would stand between those of a later one"
    assert len({epoch for _, _, epoch in turns}) == 4
