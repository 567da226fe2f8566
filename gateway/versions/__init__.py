"""Which model and version answers what clients ask for: aliases, shadows, fallbacks (SCHEDULING §5).

``routing`` reads the order: an alias's targets are ranked (``choice``), the request is rewritten for the one
chosen (``rewrite``), copied for a shadow (``mirror``), and given to a fallback where the client allows that.
"""

from gateway.versions.book import AliasCache
from gateway.versions.catalog import AliasCatalog
from gateway.versions.figures import AliasFigures
from gateway.versions.mirror import Mirrors
from gateway.versions.routing import AliasResolution, Versions
from gateway.versions.skew import SkewAlarm

__all__ = [
    "AliasCache",
    "AliasCatalog",
    "AliasFigures",
    "AliasResolution",
    "Mirrors",
    "SkewAlarm",
    "Versions",
]
