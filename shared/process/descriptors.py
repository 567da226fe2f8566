"""How many files a process may have open, as a check. Every connection is one."""

from collections.abc import Callable

from shared.process.checks import CheckOutcome, failed, passed, warned
from shared.process.startup import OPEN_FILES

LEAST = 1024
"""With fewer some dozens of streams are all that fits."""
ENOUGH = 16_384

_REMEDY = "For systemd: LimitNOFILE=65536; in a shell: ulimit -Hn 65536; for Docker: --ulimit nofile=65536."


def hard_limit() -> int | None:
    """How far the programs may raise the limit; None: nothing limits it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def descriptors_outcome(program: str, limit: Callable[[], int | None] = hard_limit) -> CheckOutcome:
    """What is said of the limit, up to which the ``program`` raises its own at its start."""
    most = limit()
    if most is None or most >= OPEN_FILES:
        return passed(f"The {program} may have {OPEN_FILES} files open.", limit=most)
    words = f"A process of this user may have {most} files open, and so fewer connections."
    if most < LEAST:
        return failed(words, _REMEDY, limit=most)
    if most < ENOUGH:
        return warned(words, _REMEDY, limit=most)
    return passed(words, limit=most)
