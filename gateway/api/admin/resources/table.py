"""Which operations there are. Pure data."""

from dataclasses import dataclass

from gateway.domain.scopes import AdminRole

APART_S = 900.0
"""The longest that an operation in a process of its own may take."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that is done to the gateway's state."""

    name: str
    """``create_key``: also what the log and ``/openapi.json`` call it."""
    method: str
    path: str
    """With names of records in braces, ``:path`` behind those that may hold slashes (Starlette's form)."""
    role: AdminRole
    """What over HTTP may do it, at least."""
    room: str
    """The module of this package that does it."""
    makes_state: bool = False
    """On a state directory that is empty, too: the command makes the state."""
    query: tuple[str, ...] = ()
    """What it takes in the query."""
    apart: bool = False
    """It may take minutes: a gateway does it in a process of its own, once at a time."""
    only_here: str = ""
    """Why it is done on the gateway's host only; such a one has no path."""

    @property
    def timeout_s(self) -> float:
        """How long who asks over HTTP waits."""
        return APART_S if self.apart else 30.0


_KEY, _TOKEN, _AGENT = "/admin/keys/{key}", "/admin/tokens/{token}", "/admin/agents/{agent}"
_ALIAS, _TENANT, _PRICE = (
    "/admin/aliases/{alias:path}",
    "/admin/tenants/{tenant}",
    "/admin/prices/{model:path}",
)

_TABLE = (
    Operation("list_keys", "GET", "/admin/keys", AdminRole.ADMIN, "keys"),
    Operation("create_key", "POST", "/admin/keys", AdminRole.ADMIN, "keys", makes_state=True),
    Operation("set_key", "PATCH", _KEY, AdminRole.ADMIN, "keys"),
    Operation("revoke_key", "DELETE", _KEY, AdminRole.ADMIN, "keys"),
    Operation("rotate_key", "POST", f"{_KEY}/rotate", AdminRole.ADMIN, "keys"),
    Operation("list_tokens", "GET", "/admin/tokens", AdminRole.ADMIN, "agents"),
    Operation("create_token", "POST", "/admin/tokens", AdminRole.ADMIN, "agents", makes_state=True),
    Operation("revoke_token", "DELETE", _TOKEN, AdminRole.ADMIN, "agents"),
    Operation("list_enrolments", "GET", "/admin/enrolments", AdminRole.VIEWER, "agents"),
    Operation("set_agent", "PATCH", _AGENT, AdminRole.ADMIN, "agents"),
    Operation("revoke_agent", "DELETE", _AGENT, AdminRole.ADMIN, "agents"),
    Operation("list_aliases", "GET", "/admin/aliases", AdminRole.VIEWER, "aliases"),
    Operation("rollback_alias", "POST", f"{_ALIAS}/rollback", AdminRole.OPERATOR, "aliases"),
    Operation("show_alias", "GET", _ALIAS, AdminRole.VIEWER, "aliases"),
    Operation("set_alias", "PUT", _ALIAS, AdminRole.OPERATOR, "aliases"),
    Operation("change_alias", "PATCH", _ALIAS, AdminRole.OPERATOR, "aliases"),
    Operation("remove_alias", "DELETE", _ALIAS, AdminRole.OPERATOR, "aliases"),
    Operation("list_tenants", "GET", "/admin/tenants", AdminRole.ADMIN, "tenants"),
    Operation("set_tenant", "PATCH", _TENANT, AdminRole.ADMIN, "tenants", makes_state=True),
    Operation("remove_tenant", "DELETE", _TENANT, AdminRole.ADMIN, "tenants"),
    Operation("list_prices", "GET", "/admin/prices", AdminRole.ADMIN, "tenants"),
    Operation("set_price", "PUT", _PRICE, AdminRole.ADMIN, "tenants", makes_state=True),
    Operation("remove_price", "DELETE", _PRICE, AdminRole.ADMIN, "tenants"),
    Operation(
        "show_usage", "GET", "/admin/usage", AdminRole.ADMIN, "usage", query=("by", "since", "after", "limit")
    ),
    Operation("show_identity", "GET", "/admin/identity", AdminRole.VIEWER, "identity"),
    Operation(
        "rotate_identity",
        "",
        "",
        AdminRole.ADMIN,
        "identity",
        only_here="the gateway's own key is what every agent trusts, so it is changed on the gateway's host, "
        "on its state directory, and not by whoever has a key",
    ),
    Operation(
        "verify_audit", "GET", "/admin/audit/verify", AdminRole.VIEWER, "audit", query=("expect",), apart=True
    ),
    Operation(
        "export_audit",
        "GET",
        "/admin/audit",
        AdminRole.ADMIN,
        "audit",
        query=("since", "kind", "after", "limit"),
    ),
)

OPERATIONS = {operation.name: operation for operation in _TABLE}
"""By name, in the order in which a router tries their paths."""
