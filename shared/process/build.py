"""Describes what this installation runs on, in a line that is printed with its version."""

import os
import platform
import sys

from shared.process.interpreter import is_optimised
from shared.speedups import NATIVE


def describe_build() -> str:
    """Whether the native functions are in use, and whether the interpreter is an optimised build."""
    if NATIVE:
        speedups = "native speedups in use"
    elif os.environ.get("TRUNKLINE_NATIVE") == "0":
        speedups = "native speedups turned off by TRUNKLINE_NATIVE=0"
    else:
        speedups = (
            "no native speedups (not built: no C compiler or headers, or older sources): the same, slower"
        )
    kind = "optimised build" if is_optimised() else "build without optimisations (about a quarter slower)"
    return f"{speedups}; Python {platform.python_version()}, {kind}"


if __name__ == "__main__":
    sys.stdout.write(f"== {describe_build()}\n")
