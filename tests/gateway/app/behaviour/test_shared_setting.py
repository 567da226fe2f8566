"""What ``shared`` may be, and that its password is shown nowhere."""

import sys
from pathlib import Path

import pytest

from gateway.app.factories import lease_engine, reserve_engine
from gateway.domain.store_address import StoreAddress
from gateway.runtime.config import ConfigError, load
from gateway.storage.leases.rules import EngineUnusable
from gateway.storage.leases.sql import SqlLeaseEngine
from gateway.storage.leases.valkey import ValkeyLeaseEngine

SECRET = "redis://:hunter2@limits.internal:6379/0"


@pytest.mark.parametrize(
    "url", ["limits.internal", "http://limits.internal", "redis:limits", "://", "mysql://a/b"]
)
def test_what_is_no_engine_is_refused(url: str) -> None:
    with pytest.raises(EngineUnusable, match="write redis://"):
        lease_engine(url)


def test_each_kind_of_url_has_its_engine() -> None:
    assert isinstance(lease_engine(SECRET), ValkeyLeaseEngine)
    assert isinstance(lease_engine("valkey://limits.internal"), ValkeyLeaseEngine)
    assert isinstance(lease_engine("sqlite:////tmp/limits.db"), SqlLeaseEngine)


def test_the_reserve_of_budgets_is_the_store_with_its_password(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    address = StoreAddress("postgresql://gw@db.internal/trunkline", password_file=secret)
    engine = reserve_engine(address)
    assert "db.internal" in engine.name
    assert "hunter2" not in engine.name
    with pytest.raises(ConfigError, match="store: limits cannot be kept there"):
        reserve_engine(StoreAddress(address.url, password_file=tmp_path / "none"))


def test_a_missing_package_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(EngineUnusable, match="pip install"):
        lease_engine(SECRET)


def test_the_settings_show_no_password() -> None:
    loaded = load({}, environment={"TRUNKLINE_GATEWAY_SHARED": SECRET})
    assert loaded.settings.shared is not None
    assert loaded.settings.shared.get_secret_value() == SECRET
    assert "hunter2" not in loaded.toml()
    assert "hunter2" not in repr(loaded.settings)
    assert "hunter2" not in lease_engine(SECRET).name
