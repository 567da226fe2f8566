"""Durable state: the gateway's key, join tokens, client keys, agents, aliases, models, usage: one directory.

SQLAlchemy Core over a ``Database``: SQLite in the state directory or, for several gateways, PostgreSQL (only
the packages ``sqlite`` and ``postgres`` know). Commands work on the state of a running gateway and take
effect there at once.
"""

from gateway.domain.quotas import UsageGrouping as UsageGrouping
from gateway.domain.state_dir import DATABASE_NAME as DATABASE_NAME
from gateway.storage.agents import AgentRecord as AgentRecord
from gateway.storage.agents import AgentStore as AgentStore
from gateway.storage.agents import Enrolment as Enrolment
from gateway.storage.aliases import AliasRecord as AliasRecord
from gateway.storage.aliases import AliasStore as AliasStore
from gateway.storage.key_files import KEY_NAME as KEY_NAME
from gateway.storage.keys import DEFAULT_TENANT as DEFAULT_TENANT
from gateway.storage.keys import KeyRecord as KeyRecord
from gateway.storage.keys import KeyStore as KeyStore
from gateway.storage.limits import PriceRecord as PriceRecord
from gateway.storage.limits import TenantRecord as TenantRecord
from gateway.storage.store import Store as Store
from gateway.storage.tokens import TokenRecord as TokenRecord
from gateway.storage.tokens import TokenState as TokenState
from gateway.storage.usage import Account as Account
from gateway.storage.usage import Amount as Amount
from gateway.storage.usage import DailySpending as DailySpending
from gateway.storage.usage import Total as Total
