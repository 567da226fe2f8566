"""The name that a gateway process keeps in its state directory."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.storage.errors import StateCorrupt
from gateway.storage.process_name import PROCESS_NAME, keep_process_name, kept_process_name, new_process_name
from shared.protocol.peers import PROCESS_PATTERN


def test_it_is_made_once_and_kept(tmp_path: Path) -> None:
    assert kept_process_name(tmp_path) is None
    name = keep_process_name(tmp_path)
    assert keep_process_name(tmp_path) == kept_process_name(tmp_path) == name
    assert (tmp_path / PROCESS_NAME).stat().st_mode & 0o777 == 0o600


def test_of_workers_that_begin_at_once_all_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        names = list(threads.map(keep_process_name, [tmp_path] * 8))
    assert len(set(names)) == 1
    assert [each.name for each in tmp_path.iterdir()] == [PROCESS_NAME]


@pytest.mark.parametrize("host", ["gw-1.example.com", "GW_1", "", "---", "x" * 300, "größe"])
def test_it_names_the_host_as_agents_can_read_it(host: str) -> None:
    name = new_process_name(host)
    assert re.fullmatch(PROCESS_PATTERN, name)
    assert new_process_name(host) != name


@pytest.mark.parametrize("content", [b"", b"a b\n", b"\xff\n", b"Big\n"])
def test_a_file_that_holds_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PROCESS_NAME).write_bytes(content)
    with pytest.raises(StateCorrupt, match="remove it"):
        keep_process_name(tmp_path)
