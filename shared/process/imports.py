"""What a start need not wait for: garbage that is not there, and what is imported only because it can be.

Importing makes objects that stay and next to no garbage: looking for it takes a tenth of a start.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

GENERATIONS = (20_000, 20, 20)
"""Objects made and not yet gone before the youngest are looked through, and so on (``gc.set_threshold``).
Requests leave no cycles behind, so there is next to nothing to find, while each look touches thousands of
live objects."""


def environment_of_child(package: ModuleType) -> dict[str, str]:
    """This process's environment, for a Python that is to find ``package`` where this one found it."""
    assert package.__file__ is not None
    ours = str(Path(package.__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))}


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage is looked for inside; nor afterwards among what was made there."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*GENERATIONS)
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
