"""Describes what this installation runs on, in a line that is printed with its version."""

import os
import platform
import sysconfig

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
    kind = "optimised build" if _optimised() else "build without optimisations (about a quarter slower)"
    return f"{speedups}; Python {platform.python_version()}, {kind}"


def _optimised() -> bool:
    """Whether the compiler knew a profile. The builds for Windows and macOS do not say; they are optimised.

    Debian and Ubuntu run the same steps by other means than the option, and take the profile's flag, which
    every other build keeps whether it uses it or not, out of what the interpreter says of itself.
    """
    arguments = sysconfig.get_config_var("CONFIG_ARGS")
    return (
        arguments is None
        or "--enable-optimizations" in arguments
        or sysconfig.get_config_var("PGO_PROF_USE_FLAG") == ""
    )
