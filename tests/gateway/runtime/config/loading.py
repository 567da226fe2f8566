"""Settings of a gateway from flags, a file and variables, and what is said of those that cannot be."""

from pathlib import Path
from typing import Any

import pytest

from gateway.runtime.config import ConfigError, Loaded, load


def loaded(flags: dict[str, Any] | None = None, file: Path | None = None, **environment: str) -> Loaded:
    return load(
        flags or {}, file, {f"TRUNKLINE_GATEWAY_{name}": value for name, value in environment.items()}
    )


def complaint(flags: dict[str, Any] | None = None, file: Path | None = None, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(flags, file, **environment)
    return str(caught.value)
