"""Durable state: the gateway's key, join tokens, client keys, agents, aliases, models, usage: one directory.

SQLAlchemy Core over a ``Database``. That is SQLite (only the package ``sqlite`` knows), so that commands work
on the state of a running gateway and take effect there at once.
"""

from gateway.domain.state_dir import DATABASE_NAME, default_state_dir, own_state_dir
from gateway.storage.agents import AgentRecord, AgentStore, Enrolment
from gateway.storage.aliases import AliasEvent, AliasRecord, AliasStore
from gateway.storage.identity import KEY_NAME
from gateway.storage.keys import DEFAULT_TENANT, KeyRecord, KeyStore
from gateway.storage.limits import (
    OTHER_MODELS,
    LimitStore,
    PriceRecord,
    PriceStore,
    TenantRecord,
    TenantStore,
    Terms,
)
from gateway.storage.store import Store
from gateway.storage.tokens import TokenRecord, TokenState, TokenStore
from gateway.storage.usage import Account, Amount, By, ModelFact, ModelStore, Spent, Total, UsageStore

__all__ = [
    "DATABASE_NAME",
    "DEFAULT_TENANT",
    "KEY_NAME",
    "OTHER_MODELS",
    "Account",
    "AgentRecord",
    "AgentStore",
    "AliasEvent",
    "AliasRecord",
    "AliasStore",
    "Amount",
    "By",
    "Enrolment",
    "KeyRecord",
    "KeyStore",
    "LimitStore",
    "ModelFact",
    "ModelStore",
    "PriceRecord",
    "PriceStore",
    "Spent",
    "Store",
    "TenantRecord",
    "TenantStore",
    "Terms",
    "TokenRecord",
    "TokenState",
    "TokenStore",
    "Total",
    "UsageStore",
    "default_state_dir",
    "own_state_dir",
]
