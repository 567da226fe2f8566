"""A store that is not sound is found out, and in what it is not."""

import base64
import time
from pathlib import Path

import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store, schema
from gateway.storage.administration import check, check_store
from gateway.storage.migrations import MIN_READER
from gateway.storage.postgres import PostgresDatabase, inspect_server


@pytest.fixture
def state(tmp_path: Path, postgres_address: StoreAddress) -> Path:
    """Of a gateway on the server, which has ended."""
    with Store.open(tmp_path, address=postgres_address, serve=True) as store:
        store.keys.create("k", "t", 1.0)
    return tmp_path


def test_a_sound_store_is_said_to_be_and_counted(state: Path, postgres_address: StoreAddress) -> None:
    with Store.open(state) as store:
        gateway = store.gateway_identity.id
    report = check_store(state, postgres_address)
    assert report.sound, report.findings
    assert report.rows["api_keys"] == 1
    assert report.rows.keys() == schema.metadata.tables.keys()
    assert f"the gateway's key is {gateway}" in report.facts


def test_a_store_without_tables_gets_none_by_being_checked(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    report = check_store(tmp_path, postgres_address)
    assert ["no tables yet" in finding for finding in report.findings] == [True]
    assert inspect_server(postgres_address).version == 0


def test_clocks_that_differ_are_found(state: Path, postgres_address: StoreAddress) -> None:
    report = check_store(state, postgres_address, lambda: time.time() - 60.0)
    assert ["apart: set both" in finding for finding in report.findings] == [True]
    assert check.MOST_SKEW_S < 60


def test_other_versions_are_named(
    state: Path, postgres_address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    assert "trunkline store migrate" in check_store(state, postgres_address).findings[0]
    monkeypatch.setattr(schema, "SCHEMA_VERSION", MIN_READER - 1)
    assert "are for later programs" in check_store(state, postgres_address).findings[0]


def test_a_wrong_wrapping_key_and_rows_that_cannot_be_are_found(
    state: Path, tmp_path: Path, postgres_address: StoreAddress
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(base64.b64encode(bytes(32)))
    wrong.chmod(0o600)
    address = StoreAddress(postgres_address.url, cluster_key=wrong)
    assert ["was wrapped with" in finding for finding in check_store(state, address).findings] == [True]
    database = PostgresDatabase(postgres_address)
    with database.write() as connection:
        connection.execute(schema.keys.update().values(revision=99, role="emperor"))
    database.close()
    findings = "\n".join(check_store(state, postgres_address).findings)
    assert "rows of revision 99" in findings
    assert "keys cannot be read" in findings


def test_a_store_no_gateway_has_used_is_sound(tmp_path: Path, postgres_address: StoreAddress) -> None:
    PostgresDatabase(postgres_address).close()
    report = check_store(tmp_path, postgres_address)
    assert report.sound
    assert ["not made yet" in text for text in report.notes] == [True]
