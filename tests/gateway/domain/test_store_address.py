"""Addresses of stores: which there are, and that nobody is shown a password."""

import pytest

from gateway.domain.store_address import BadStoreAddress, StoreAddress

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://gw@db.example:5433/trunkline", "PostgreSQL at db.example:5433, database trunkline"),
        (f"postgres://gw:{SECRET}@db/trunkline", "PostgreSQL at db, database trunkline"),
        (
            f"postgresql://gw:{SECRET}@a:1,b:2/t?target_session_attrs=read-write",
            "PostgreSQL at a:1,b:2, database t",
        ),
        (f"postgresql:///t?host=%2Frun&password={SECRET}", "PostgreSQL at /run, database t"),
        ("postgresql://[2001:db8::1]:5432/t", "PostgreSQL at [2001:db8::1]:5432, database t"),
        ("postgresql://", "PostgreSQL at this machine"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    address = StoreAddress(url)
    assert str(address) == shown
    assert SECRET not in repr(address)


@pytest.mark.parametrize(
    ("url", "without"),
    [
        ("postgresql://gw@h/d", "postgresql://gw@h/d"),
        (f"postgresql://gw:{SECRET}@h:1,i:2/d?sslmode=require", "postgresql://gw@h:1,i:2/d?sslmode=require"),
        (f"postgresql://h/d?password={SECRET}", "postgresql://h/d"),
        (f"postgresql://h/d?a=b&password={SECRET}&sslpassword={SECRET}&c=d", "postgresql://h/d?a=b&c=d"),
    ],
)
def test_a_password_can_be_left_out(url: str, without: str) -> None:
    assert StoreAddress(url).url_without_password == without


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gateway.db",
        "mysql://u@h/d",
        "postgresql:h/d",
        f"postgresql://u:{SECRET}/x@h/d",
        f"postgresql://u:{SECRET}@x@h/d",
        f"postgresql://u:{SECRET}#x@h/d",
        f"postgresql://h:port{SECRET}/d",
    ],
)
def test_what_is_no_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadStoreAddress, match="write postgresql://") as caught:
        StoreAddress(url)
    assert SECRET not in str(caught.value)
