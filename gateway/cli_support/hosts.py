"""The programs of this installation that have checks and settings to show, whichever package they are of."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from shared.process.checks import HostChecks


def registered_hosts(context: Any) -> dict[str, HostChecks]:
    """By kind, such as ``agent``: the modules that packages registered at the root of the command line.
    ``context`` is that of a command there."""
    modules: Mapping[str, str] = getattr(context.find_root().command, "checks", {})
    return {kind: cast(HostChecks, import_module(module)) for kind, module in modules.items()}
