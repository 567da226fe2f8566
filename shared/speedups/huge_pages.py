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


def collapse_pages() -> int:
    """Has what the process holds by now in huge pages, as far as its memory is in use and lies together.

    What a request touches is spread over two thousand small pages, most of them of what was made as the
    program started, and between two requests the processor forgets where they are. It takes milliseconds, in
    which other threads may run. Memory that is taken afterwards is where it would have been.

    Returns how many bytes are in such pages: 0 in Python, where the system has none or lets no program have
    them (:func:`use_huge_pages`), and before Linux 6.1.
    """
    return 0
