"""The gateway's settings: flag, else environment, else file, else default.

Every field is ``TRUNKLINE_GATEWAY_`` and its name in the environment, with two underscores into a table
(``TRUNKLINE_GATEWAY_HTTP__BODY_BYTES``), and the same name in the TOML file. Nothing outside this package
reads the environment. What cannot be right is an error at the start that names key, value and place.
"""

from gateway.runtime.config.settings import DEFAULT_LISTEN, PREFIX, Settings
from gateway.runtime.config.sources import CONFIG_VARIABLE, Loaded, load
from shared.process.settings import ConfigError

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_LISTEN",
    "PREFIX",
    "ConfigError",
    "Loaded",
    "Settings",
    "load",
]
