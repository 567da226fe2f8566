"""Durable state: the gateway's key, join tokens, client keys, agents, aliases, models, usage: one directory.

SQLite under it (only ``sqlite`` and ``copies`` know), so that commands work on the state of a running
gateway and take effect there at once.
"""

from gateway.location import DATABASE_NAME, default_state_dir, own_state_dir
from gateway.store.agents import AgentRecord, AgentStore, Enrolment
from gateway.store.aliases import AliasEvent, AliasRecord, AliasStore
from gateway.store.identity import KEY_NAME
from gateway.store.keys import DEFAULT_TENANT, KeyRecord, KeyStore
from gateway.store.limits import LimitStore, Terms
from gateway.store.models import ModelFact, ModelStore
from gateway.store.prices import OTHER_MODELS, PriceRecord, PriceStore
from gateway.store.store import Store
from gateway.store.tenants import TenantRecord, TenantStore
from gateway.store.tokens import TokenRecord, TokenState, TokenStore
from gateway.store.usage import Account, Amount, By, Spent, Total, UsageStore

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
