"""What workers are called, and their part of the settings."""

import re
from dataclasses import replace

import pytest

from gateway.quota.pools import EngineLink, StaticProcessCount
from gateway.runtime.config import Settings, load
from gateway.runtime.workers import settings as workers
from gateway.runtime.workers.role import alternate_name
from gateway.runtime.workers.settings import process_names, worker_count, worker_settings
from gateway.storage.process_name import new_process_name
from shared.protocol.peers import PROCESS_PATTERN
from tests.gateway.runtime.workers.test_role import ROLE


def settings(**flags: object) -> Settings:
    return load(flags, None, {}).settings


def test_the_count_is_given_or_that_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_count(settings()) == 1
    assert worker_count(settings(workers="3")) == 3
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert worker_count(settings(workers="auto")) == 6
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(600)), raising=False)
    assert worker_count(settings(workers="auto")) == workers.MOST_WORKERS


@pytest.mark.parametrize("host", ["gpu-1.example.org", "GPU_1", "-", "", "ü" * 80, "x" * 300])
def test_processes_are_named_after_the_host(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr("platform.node", lambda: host)
    names = process_names(settings(), 64)
    assert len(set(names)) == 64
    assert all(re.fullmatch(PROCESS_PATTERN, name) for name in names)


def test_hosts_of_one_name_that_share_a_store_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "same")
    first, second = new_process_name("s" * 80), new_process_name("s" * 80)
    names = [process_names(settings(), 64, kept) for kept in (first, second)]
    assert len({*names[0], *names[1]}) == 128
    assert all(re.fullmatch(PROCESS_PATTERN, alternate_name(name)) for name in names[0])
    assert names[0][3] == f"{first}-3"
    assert process_names(settings(cluster={"process": "mine"}), 1, first) == ["mine-0"]


def test_one_that_replaces_another_has_a_name_of_its_own_that_fits() -> None:
    for name in process_names(settings(), 64):
        other = alternate_name(name)
        assert other != name
        assert re.fullmatch(PROCESS_PATTERN, other)
        assert alternate_name(other) == name


def test_a_worker_knows_its_siblings_and_the_processes_elsewhere() -> None:
    mine = worker_settings(settings(cluster={"process": "a", "peers": ["a", "b=https://b"]}), ROLE)
    assert mine.cluster.process == "a-1"
    assert mine.cluster.peers == ["a-0", "a-1", "a-2", "a-3", "b=https://b"]


def test_limits_are_kept_together_in_the_state_directory() -> None:
    mine = worker_settings(settings(), ROLE)
    assert mine.shared is not None
    assert mine.shared.get_secret_value() == "sqlite:////var/state/limits.db"
    assert mine.shared_processes == 4


def test_limits_of_several_hosts_stay_on_their_server() -> None:
    mine = worker_settings(settings(shared="redis://r", shared_processes=3), ROLE)
    assert mine.shared is not None
    assert (mine.shared.get_secret_value(), mine.shared_processes) == ("redis://r", 12)
    link = EngineLink(StaticProcessCount(12, 11), lambda pool: None)
    assert 12 * link.share(100) <= 100


def test_what_bounds_a_host_is_divided_and_what_one_request_needs_is_not() -> None:
    whole = settings()
    mine = worker_settings(whole, ROLE)
    assert mine.http.connections == whole.http.connections // 4
    assert mine.http.connections_per_ip == whole.http.connections_per_ip // 4
    assert mine.http.buffer_bytes == whole.http.buffer_bytes // 4
    assert mine.http.body_bytes == whole.http.body_bytes
    assert mine.queue.max_requests_total == whole.queue.max_requests_total // 4
    assert mine.dispatch.unread_bytes == whole.dispatch.unread_bytes // 4
    assert mine.agents.max_agents == whole.agents.max_agents, "each agent is at each worker"


def test_a_part_is_never_too_small_for_one_request() -> None:
    whole = settings(http={"buffer_bytes": 200 * 1024**2}, dispatch={"record_bytes": 60 * 1024**2})
    mine = worker_settings(whole, replace(ROLE, count=64))
    assert mine.http.buffer_bytes == 2 * whole.http.body_bytes
    assert mine.dispatch.records_total_bytes == whole.dispatch.record_bytes
    assert worker_settings(settings(http={"connections": 3}), ROLE).http.connections == 1
