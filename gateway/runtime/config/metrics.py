"""What can be set of metrics."""

from typing import Annotated

from pydantic import Field

from gateway.runtime.config.cluster import SettingsTable

ClassName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
Pattern = Annotated[str, Field(min_length=1, max_length=200)]


class MetricsTable(SettingsTable):
    """What is counted beside the rest."""

    tenant_classes: Annotated[
        dict[ClassName, Annotated[list[Pattern], Field(max_length=1000)]], Field(max_length=20)
    ] = {}
    """Classes of tenants, such as paying = ["acme", "corp-*"], whose requests are counted and timed class by
    class. A tenant is in the first that has a pattern for it; those in none are in the class other."""
