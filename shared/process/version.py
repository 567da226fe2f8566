"""Which version of Trunkline this program is."""

from importlib.metadata import PackageNotFoundError, version


def program_version() -> str:
    """The installed distribution's version, or ``(not installed)`` for a checkout that is not installed."""
    try:
        return version("trunkline")
    except PackageNotFoundError:
        return "(not installed)"
