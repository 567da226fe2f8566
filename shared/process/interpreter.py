"""What an interpreter is good for, told by that interpreter itself; needs nothing that is installed."""

import sysconfig
from pathlib import Path


def is_optimised() -> bool:
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


def has_headers() -> bool:
    """Whether extensions in C can be compiled against this interpreter."""
    return Path(sysconfig.get_path("include"), "Python.h").is_file()


def grade() -> int:
    """How well the interpreter suits a new environment, from 0 to 3; the native functions save the most."""
    return 2 * has_headers() + is_optimised()
