"""The processes that are there, as their rows say."""

from dataclasses import replace

import pytest

from gateway.cluster.directory import BEAT_S, DEAD_S, ProcessDirectory, named_peers
from gateway.storage.processes import ProcessRecord, ProcessReport
from shared.protocol.peers import GatewayPeer

OWN = GatewayPeer("b", 5)


class Site:
    """Rows on a store's clock that is an hour ahead, read by one process each ``BEAT_S``."""

    def __init__(self, *named: str, least: int = 1) -> None:
        self.now = 100.0
        self.rows: dict[str, ProcessRecord] = {}
        self.paused: set[str] = set()
        self.told = 0
        named_ones = named_peers(dict.fromkeys(named))
        self.directory = ProcessDirectory(OWN, named_ones, least=least, begins_s=self.now)
        self.directory.changed = self._changed
        self.starts("b", 5)

    def _changed(self) -> None:
        self.told += 1

    def starts(self, name: str, incarnation: int = 1, url: str | None = None) -> None:
        self.rows[name] = ProcessRecord(name, incarnation, url, "host", "1", 0.0, self.now + 3600)

    def passes(self, seconds: float, *, reads: bool = True, beats: bool = True) -> None:
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
            if beats:
                for name in self.rows.keys() - self.paused:
                    self.rows[name] = replace(self.rows[name], heard=self.now + 3600)
            if reads:
                self.directory.update(
                    ProcessReport(self.now + 3600, tuple(sorted(self.rows.values(), key=lambda r: r.id))),
                    self.now,
                )

    @property
    def there(self) -> list[str]:
        return sorted(peer.process for peer in self.directory.peers_for("gpu-1"))


@pytest.fixture
def site() -> Site:
    site = Site()
    site.passes(DEAD_S)
    return site


def test_a_process_is_alone_until_others_write_rows(site: Site) -> None:
    assert (site.there, site.directory.count, site.directory.index, site.told) == (["b"], 1, 0, 0)
    site.starts("a", url="https://a.example")
    site.starts("c")
    site.passes(BEAT_S)
    assert (site.there, site.directory.count, site.directory.index, site.told) == (["a", "b", "c"], 3, 1, 1)
    assert GatewayPeer("a", 1, "https://a.example") in site.directory.peers_for("gpu-1")
    site.passes(60)
    assert site.told == 1, "nothing changed"


def test_what_was_started_anew_is_told(site: Site) -> None:
    site.starts("a", 1)
    site.passes(BEAT_S)
    site.starts("a", 2)
    site.passes(BEAT_S)
    assert GatewayPeer("a", 2) in site.directory.peers_for("gpu-1")
    assert site.told == 2


def test_a_process_that_was_stopped_is_gone_at_once_and_a_silent_one_after_six_seconds(site: Site) -> None:
    for name in ("a", "c"):
        site.starts(name)
    site.passes(DEAD_S)
    del site.rows["a"]
    site.passes(BEAT_S)
    assert site.there == ["b", "c"]
    site.paused.add("c")
    site.passes(DEAD_S - BEAT_S)
    assert site.there == ["b", "c"]
    site.passes(BEAT_S)
    assert (site.there, site.directory.count) == (["b"], 1)
    site.paused.clear()
    site.passes(BEAT_S)
    assert site.there == ["b", "c"], "it was only frozen"


def test_while_the_store_is_away_all_stay_and_have_time_to_come_back(site: Site) -> None:
    for name in ("a", "c"):
        site.starts(name)
    site.passes(BEAT_S)
    told = site.told
    site.passes(120, reads=False, beats=False)
    assert site.there == ["a", "b", "c"]
    site.passes(BEAT_S, beats=False)
    assert site.there == ["a", "b", "c"], "the others could not write either"
    site.paused.add("c")
    site.passes(DEAD_S)
    assert (site.there, site.told) == (["a", "b"], told + 1)


def test_rows_of_long_ago_are_no_processes() -> None:
    site = Site()
    site.starts("a")
    site.paused.add("a")
    site.passes(30, reads=False)
    site.passes(BEAT_S)
    assert site.there == ["b"]


def test_processes_that_are_named_count_until_their_rows_say_otherwise() -> None:
    site = Site("a", "b", "c")
    site.passes(60)
    assert (site.there, site.directory.count) == (["a", "b", "c"], 1)
    site.starts("a", 9)
    site.passes(DEAD_S)
    assert GatewayPeer("a", 9) in site.directory.peers_for("gpu-1")
    del site.rows["a"]
    site.passes(BEAT_S)
    assert site.there == ["b", "c"]


def test_shares_are_of_as_many_as_the_settings_say_at_least() -> None:
    site = Site(least=3)
    site.starts("a")
    site.passes(BEAT_S)
    assert (site.directory.count, site.directory.index) == (3, 1)
    for name in ("c", "d"):
        site.starts(name)
    site.passes(BEAT_S)
    assert site.directory.count == 4
