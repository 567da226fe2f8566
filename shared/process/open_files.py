"""The limit of open files: every connection is one."""

import sys

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
    """Lets this process have ``most`` files open, or as many as it may if those are fewer; never lowers the
    limit. Returns the limit as it is then, None for none."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return file_limit()
