"""Gateways with one store and a log each: an administrative act is a line in one of them, once."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.domain.store_address import StoreAddress
from gateway.observability.audit import Retention, append_pending_acts
from gateway.observability.audit.segments import DIRECTORY
from gateway.observability.audit.writer import AuditSettings, AuditWriter, audit_writer
from gateway.storage import Store
from gateway.storage.errors import StateBusy
from tests.gateway.observability.audit.logs import records


class Site:
    """``owner`` says which of two gateways owns."""

    def __init__(self, tmp_path: Path, address: StoreAddress, opened: ExitStack) -> None:
        self.owner = "a"
        self.stores: dict[str, Store] = {}
        self.writers: dict[str, AuditWriter] = {}
        for name in "ab":
            cluster_key = tmp_path / "a" / "cluster.key" if name == "b" else None
            given = StoreAddress(address.url, cluster_key)
            self.stores[name] = store = opened.enter_context(
                Store.open(tmp_path / name, serve=True, address=given)
            )
            _ = store.gateway_identity  # makes the cluster key
            self.start(name)

    def start(self, name: str) -> AuditWriter:
        owns = lambda: self.owner == name  # noqa: E731
        self.writers[name] = audit_writer(self.stores[name], AuditSettings(), Retention(), owns)
        return self.writers[name]

    def write(self) -> None:
        for writer in self.writers.values():
            assert writer.write()

    def lines(self, name: str) -> list[str]:
        return [
            record["name"]
            for record in records(self.stores[name].state_dir / DIRECTORY)
            if record["kind"] == "thing.change"
        ]


@pytest.fixture
def site(tmp_path: Path, postgres_address: StoreAddress) -> Iterator[Site]:
    with ExitStack() as opened:
        yield Site(tmp_path, postgres_address, opened)


def test_the_owner_takes_acts_up_and_a_command_leaves_them_to_it(site: Site) -> None:
    site.stores["b"].acts.note("thing.change", name="1")
    assert append_pending_acts(site.stores["b"]) == 0
    for name in "ba":
        site.writers[name].write()
    assert (site.lines("a"), site.lines("b")) == (["1"], [])
    site.owner = "b"
    site.stores["a"].acts.note("thing.change", name="2")
    site.write()
    assert (site.lines("a"), site.lines("b")) == (["1"], ["2"])
    assert site.stores["a"].acts.pending(9) == ()


def test_what_waited_when_another_began_to_own_is_taken_up_though_nothing_changes_any_more(
    site: Site,
) -> None:
    site.owner = ""
    site.stores["a"].acts.note("thing.change", name="1")
    site.write()
    assert (site.lines("a"), site.lines("b")) == ([], [])
    site.owner = "b"
    site.write()
    assert (site.lines("a"), site.lines("b")) == ([], ["1"])


def test_an_owner_that_dies_with_lines_it_could_not_cross_off_leaves_none_for_the_next(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise StateBusy("just now")

    site.stores["a"].acts.note("thing.change", name="1")
    with monkeypatch.context() as patch:
        patch.setattr(site.writers["a"]._acts, "forget", busy)
        site.writers["a"].write()
    site.owner = "b"
    site.stores["a"].acts.note("thing.change", name="2")
    site.writers["b"].write()
    assert (site.lines("a"), site.lines("b")) == (["1"], ["2"])
    assert len(site.stores["a"].acts.pending(9)) == 1
    site.start("a").write()
    assert (site.lines("a"), site.lines("b")) == (["1"], ["2"])
    assert site.stores["a"].acts.pending(9) == ()
