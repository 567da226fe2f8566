"""The metrics of several processes as one page of the exposition format.

Each series gets the name of its process as a label, counters as well: a sum over processes would fall when
one of them starts again or does not answer, and a fall of a counter reads as a reset of the whole. Where the
sum is wanted, ``sum without (process) (…)`` makes it, after ``rate``.
"""

from collections.abc import Mapping, Sequence

UP = "trunkline_gateway_process_up"


def merge_expositions(pages: Mapping[str, bytes], missing: Sequence[str]) -> bytes:
    """``pages`` by process, and the processes that gave none."""
    families: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
    for process, page in pages.items():
        label = f'process="{process}"'.encode()
        name, (head, samples) = b"", ([], [])  # type: tuple[bytes, tuple[list[bytes], list[bytes]]]
        for line in page.splitlines():
            if line.startswith(b"# HELP ") or (line.startswith(b"# TYPE ") and line.split(b" ")[2] != name):
                name = line.split(b" ", 3)[2]
                head, samples = families.setdefault(name, ([], []))
            if line.startswith(b"#"):
                if line not in head:
                    head.append(line)
            elif line:
                samples.append(_labelled(line, label))
    lines = [line for head, samples in families.values() for line in (*head, *samples)]
    lines.append(f"# HELP {UP} Whether a process of this gateway answered.".encode())
    lines.append(f"# TYPE {UP} gauge".encode())
    lines += [f'{UP}{{process="{process}"}} 1.0'.encode() for process in pages]
    lines += [f'{UP}{{process="{process}"}} 0.0'.encode() for process in missing]
    return b"\n".join([*lines, b""])


def _labelled(line: bytes, label: bytes) -> bytes:
    """A sample with one more label. Names hold neither braces nor blanks; values of labels may hold both."""
    name, separator, rest = line.partition(b"{")
    if separator and b" " not in name:
        return b"%b{%b,%b" % (name, label, rest)
    name, _, value = line.partition(b" ")
    return b"%b{%b} %b" % (name, label, value)
