"""A document's marked blocks, each written anew by the load it belongs to."""

from pathlib import Path

END = "<!-- end of what it wrote -->"


def begin_of(load: str) -> str:
    """The mark before the block of a load."""
    return f"<!-- written by: tests/run bench {load} --write docs/performance.md -->"


def write_block(document: Path, load: str, block: str) -> None:
    """Replace what stands between the load's marks. Raises ValueError if the document has none."""
    text = document.read_text("utf-8")
    before, begin, rest = text.partition(begin_of(load))
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} has no place for figures: {begin_of(load)} … {END}")
    document.write_text(f"{before}{begin}\n\n{block}\n\n{end}{after}", "utf-8")
