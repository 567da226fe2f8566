"""No two public classes of the product have one name, so that a name says where one is."""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("gateway", "agent", "shared")
_CLASS = re.compile(r"^class ([^\W_]\w*)", re.M)


def used_twice(sources: Iterable[tuple[str, str]]) -> list[str]:
    """Each name that several public classes of ``sources``, pairs of a path and its text, have, as a line for
    people."""
    places = defaultdict[str, list[str]](list)
    for path, source in sources:
        for found in _CLASS.finditer(source):
            places[found[1]].append(f"{path}:{source.count(chr(10), 0, found.start()) + 1}")
    return [f"{name}: {', '.join(those)}" for name, those in sorted(places.items()) if len(those) > 1]


def test_no_two_public_classes_of_the_product_have_one_name() -> None:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = used_twice((str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in paths)
    assert not found, "\n".join(["names that two public classes have:", *found])


def test_a_name_that_is_used_twice_is_found() -> None:
    first, second = ("a.py", "class Twice: ...\nclass Once: ...\n"), ("b.py", "\nclass Twice: ...\n")
    assert used_twice([first, second]) == ["Twice: a.py:1, b.py:2"]
    assert not used_twice([first, ("b.py", "class _Twice: ...\ndef Once(): ...\n")])
