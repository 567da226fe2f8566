"""Which operations there are. Pure data."""

from dataclasses import dataclass

from gateway.scopes import Role


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that is done to the gateway's state."""

    name: str
    """``create_key``: also what the log and ``/openapi.json`` call it."""
    method: str
    path: str
    """With names of records in braces, ``:path`` behind those that may hold slashes (Starlette's form)."""
    role: Role
    """What over HTTP may do it, at least."""
    makes_state: bool = False
    """On a state directory that is empty, too: the command makes the state."""


_KEY, _TOKEN, _AGENT = "/admin/keys/{key}", "/admin/tokens/{token}", "/admin/agents/{agent}"
_ALIAS, _TENANT, _PRICE = (
    "/admin/aliases/{alias:path}",
    "/admin/tenants/{tenant}",
    "/admin/prices/{model:path}",
)

_TABLE = (
    Operation("list_keys", "GET", "/admin/keys", Role.ADMIN),
    Operation("create_key", "POST", "/admin/keys", Role.ADMIN, makes_state=True),
    Operation("set_key", "PATCH", _KEY, Role.ADMIN),
    Operation("revoke_key", "DELETE", _KEY, Role.ADMIN),
    Operation("rotate_key", "POST", f"{_KEY}/rotate", Role.ADMIN),
    Operation("list_tokens", "GET", "/admin/tokens", Role.ADMIN),
    Operation("create_token", "POST", "/admin/tokens", Role.ADMIN, makes_state=True),
    Operation("revoke_token", "DELETE", _TOKEN, Role.ADMIN),
    Operation("list_enrolments", "GET", "/admin/enrolments", Role.VIEWER),
    Operation("set_agent", "PATCH", _AGENT, Role.ADMIN),
    Operation("revoke_agent", "DELETE", _AGENT, Role.ADMIN),
    Operation("list_aliases", "GET", "/admin/aliases", Role.VIEWER),
    Operation("rollback_alias", "POST", f"{_ALIAS}/rollback", Role.OPERATOR),
    Operation("show_alias", "GET", _ALIAS, Role.VIEWER),
    Operation("set_alias", "PUT", _ALIAS, Role.OPERATOR),
    Operation("change_alias", "PATCH", _ALIAS, Role.OPERATOR),
    Operation("remove_alias", "DELETE", _ALIAS, Role.OPERATOR),
    Operation("list_tenants", "GET", "/admin/tenants", Role.ADMIN),
    Operation("set_tenant", "PATCH", _TENANT, Role.ADMIN, makes_state=True),
    Operation("remove_tenant", "DELETE", _TENANT, Role.ADMIN),
    Operation("list_prices", "GET", "/admin/prices", Role.ADMIN),
    Operation("set_price", "PUT", _PRICE, Role.ADMIN, makes_state=True),
    Operation("remove_price", "DELETE", _PRICE, Role.ADMIN),
)

OPERATIONS = {operation.name: operation for operation in _TABLE}
"""By name, in the order in which a router tries their paths."""
