"""What a process does at its start: what it does not wait for, how many files it may open, what it is, where
its user is at home.

Importing makes objects that stay and next to no garbage: looking for it takes a tenth of a start. Every
connection is an open file, so the limit of those is raised as far as it may be.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

GENERATIONS = (20_000, 20, 20)
"""For ``gc.set_threshold``. Requests leave no cycles behind, so there is next to nothing to find, while each
look touches thousands of live objects."""


def environment_of_child(package: ModuleType) -> dict[str, str]:
    """This process's environment, for a Python that is to find ``package`` where this one found it."""
    assert package.__file__ is not None
    ours = str(Path(package.__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))}


@contextmanager
def without_collection(thresholds: tuple[int, int, int] = GENERATIONS) -> Iterator[None]:
    """No garbage is looked for inside; nor afterwards among what was made there. ``thresholds`` are those of
    ``gc.set_threshold`` afterwards."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*thresholds)
        gc.enable()


@contextmanager
def without_optional(*packages: str) -> Iterator[None]:
    """What is imported inside finds none of these ``packages``, unless they are imported already, as if they
    were not installed: libraries that can do without them do. Outside they can be imported as ever."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


OPEN_FILES = 65_536
"""What the limit is raised to where it may be."""


def file_limit() -> int | None:
    """How many files this process may have open now; None when nothing limits them."""
    if sys.platform == "win32":
        return None
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def raise_file_limit(most: int = OPEN_FILES) -> int | None:
    """Raises the limit to ``most`` files, or as far as it may be. Returns the limit then, None for none."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return file_limit()


def home_directory() -> Path:
    """This user's. Of one that has none, as in a container that runs as any user: ``/``, as Docker says."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


@cache
def program_version() -> str:
    """The installed distribution's version, or ``(not installed)`` for a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # not at every start

    try:
        return version("trunkline")
    except PackageNotFoundError:
        return "(not installed)"
