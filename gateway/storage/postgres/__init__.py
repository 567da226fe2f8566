"""PostgreSQL under the store, for several gateways on one state: the only package that knows psycopg.

``connections`` opens connections and bounds their waiting · ``failures`` says in our errors what the server
said · ``inspection`` looks at a server and changes nothing · ``notices`` tells of others' changes ·
``tables`` makes and upgrades the schema · ``database`` is the :class:`gateway.storage.database.Database` over
them.
"""

from gateway.storage.postgres.database import PostgresDatabase
from gateway.storage.postgres.inspection import PostgresFacts, inspect_server

__all__ = ["PostgresDatabase", "PostgresFacts", "inspect_server"]
