"""The interpreter's objects in huge pages. The reference for its native twin."""


def use_huge_pages() -> bool:
    """Has memory that the interpreter takes for objects from now on, up to 512 bytes each, in huge pages of
    2 MiB.

    A message of each of a thousand agents touches other objects than the message before, so that the
    processor has to find nearly every page anew. There are 500 times fewer huge ones. What objects there are
    already stays where it is. Memory that is freed is given back to the system as before, in pieces as large
    as the interpreter's. Where the system has no huge pages, or may not use them
    (``/sys/kernel/mm/transparent_hugepage/enabled``), the pages are small as ever.

    Returns whether it was possible: not in Python, and on Linux only. A second call changes nothing.
    """
    return False
