"""What the admin API says of the key that asks, and of the gateway's settings."""

import pytest

from gateway.api.admin.about import without_passwords
from gateway.domain.scopes import AdminRole
from tests.gateway.api.admin.house import House


@pytest.mark.parametrize("role", list(AdminRole))
async def test_a_key_learns_its_role_and_who_answers(house: House, role: AdminRole) -> None:
    status, found, headers = await house.ask("GET", "/admin/self", role)
    assert (status, headers["cache-control"]) == (200, "no-store")
    key = found["key"]
    assert (key["name"], key["tenant"], key["role"]) == (f"its-{role}", "ops", role)
    assert found["gateway"] == {"process": "gateway", "version": "1.2.3"}


async def test_the_settings_take_an_operator_and_hide_passwords(house: House) -> None:
    assert (await house.ask("GET", "/admin/settings", AdminRole.VIEWER))[0] == 403
    status, found, _ = await house.ask("GET", "/admin/settings", AdminRole.OPERATOR)
    assert status == 200
    (setting,) = found["settings"]
    assert setting["value"] == "postgresql://ada:**********@db/trunkline"
    assert (setting["path"], setting["set"], setting["changeable"]) == ("store.url", True, False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("redis://:secret@cache:6379/0", "redis://:**********@cache:6379/0"),
        (["amqp://u:p%40ss@q/"], ["amqp://u:**********@q/"]),
        ({"a": {"url": "https://u:p@h"}}, {"a": {"url": "https://u:**********@h"}}),
        ("postgresql://h/d?user=u&password=p%40s", "postgresql://h/d?user=u&password=**********"),
        ("postgresql://h/d?sslpassword=p&user=u", "postgresql://h/d?sslpassword=**********&user=u"),
        ("https://h:8700/path@x", "https://h:8700/path@x"),
        ("0.0.0.0:443", "0.0.0.0:443"),
        (None, None),
        (3, 3),
    ],
)
def test_passwords_in_urls_are_hidden(value: object, shown: object) -> None:
    assert without_passwords(value) == shown
