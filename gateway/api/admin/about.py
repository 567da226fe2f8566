"""``/admin/self`` and ``/admin/settings``: whose key it is, which process answers, and its settings."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from gateway.api.admin.resources.resource import Json
from gateway.api.admin.routes import AdminCall, AdminMethod
from gateway.domain.scopes import AdminRole

_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]*@")
_PARAMETER = re.compile(r"(?<=[?&])((?:ssl)?password)=[^&\s]*")
"""PostgreSQL's URLs may have them behind the question mark."""
_HIDDEN = "**********"


@dataclass(frozen=True)
class AboutAdmin:
    """What the dashboard asks first."""

    process: Callable[[], Json]
    """What is shown of this process."""
    settings: Callable[[], list[Json]]
    """The settings in force, each with its ``path`` and ``value``."""

    def methods(self) -> list[AdminMethod]:
        return [
            AdminMethod("GET", "/admin/self", AdminRole.VIEWER, self.show_self),
            AdminMethod("GET", "/admin/settings", AdminRole.OPERATOR, self.show_settings),
        ]

    async def show_self(self, call: AdminCall) -> Json:
        """The key that asks, with its role, and the process that answers."""
        asks = call.principal
        shown = {"id": asks.key_id, "name": asks.key_name, "tenant": asks.tenant, "role": asks.role}
        return {"key": shown, "gateway": self.process()}

    async def show_settings(self, call: AdminCall) -> Json:
        """Every setting in force at this process, and whether it was set or is a default. Secrets and
        passwords are not told."""
        return {"settings": [each | {"value": without_passwords(each["value"])} for each in self.settings()]}


def without_passwords(value: object) -> object:
    """``value`` with the password of every URL in it hidden."""
    if isinstance(value, str):
        return _PARAMETER.sub(rf"\1={_HIDDEN}", _PASSWORD.sub(rf"\1:{_HIDDEN}@", value))
    if isinstance(value, list):
        return [without_passwords(each) for each in value]
    if isinstance(value, dict):
        return {name: without_passwords(each) for name, each in value.items()}
    return value
