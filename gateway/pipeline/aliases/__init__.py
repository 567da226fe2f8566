"""Which model and version answers what clients ask for: aliases, shadows, fallbacks (`docs/versions.md`).

``routing`` reads the order: an alias's targets are ranked (``cache``), the request is rewritten for the one
chosen (``rewrite``), copied for a shadow (``mirror``), and given to a fallback where the client allows that.
"""

from gateway.pipeline.aliases.cache import AliasCache
from gateway.pipeline.aliases.catalog import AliasCatalog
from gateway.pipeline.aliases.figures import AliasFigures
from gateway.pipeline.aliases.mirror import Mirrors
from gateway.pipeline.aliases.routing import VERSION, AliasResolution, AliasResolver
from gateway.pipeline.aliases.served_versions import VersionSkewDetector

__all__ = [
    "VERSION",
    "AliasCache",
    "AliasCatalog",
    "AliasFigures",
    "AliasResolution",
    "AliasResolver",
    "Mirrors",
    "VersionSkewDetector",
]
