"""Files and functions, of the product and of its tests, stay short enough to be read at once."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIRECTORIES = ("gateway", "agent", "shared", "tests", "deploy")

FILE_LINES = 400
FUNCTION_LINES = 60


_INNER = ("body", "orelse", "finalbody", "handlers", "cases")


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All of them, also those inside others. Expressions have none inside: to look at them too would take as
    long as parsing does."""
    for each in body:
        yield each
        for name in _INNER:
            yield from statements(getattr(each, name, ()))


def too_long(path: str, source: str) -> list[str]:
    """What of a file is longer than it may be, each as a line for people."""
    found = []
    if (lines := len(source.splitlines())) > FILE_LINES:
        found.append(f"{path} has {lines} lines, of {FILE_LINES} at most: divide it by what it answers")
    for node in statements(ast.parse(source).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                found.append(
                    f"{path}:{node.lineno}: {node.name} has {lines} lines, of {FUNCTION_LINES} at most: "
                    "give its steps names"
                )
    return found


def test_no_file_and_no_function_is_too_long() -> None:
    found = []
    for directory in DIRECTORIES:
        for path in sorted((ROOT / directory).rglob("*.py")):
            if ".cache" not in path.parts:  # what tests installed
                found += too_long(str(path.relative_to(ROOT)), path.read_text("utf-8"))
    assert not found, "\n".join(["too long:", *found])


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x = 1\n" * FILE_LINES, 0),
        ("x = 1\n" * (FILE_LINES + 1), 1),
        ("def f():\n" + "    x = 1\n" * (FUNCTION_LINES - 1), 0),
        ("def f():\n" + "    x = 1\n" * FUNCTION_LINES, 1),
        ("class A:\n    async def f(self):\n" + "        x = 1\n" * FUNCTION_LINES, 1),
        ("if a:\n    b()\nelse:\n    def f():\n" + "        x = 1\n" * FUNCTION_LINES, 1),
        ("try:\n    a()\nexcept A:\n    def f():\n" + "        x = 1\n" * FUNCTION_LINES, 1),
        ("match a:\n    case 1:\n        def f():\n" + "            x = 1\n" * FUNCTION_LINES, 1),
    ],
)
def test_what_is_too_long_is_found(source: str, count: int) -> None:
    assert len(too_long("file.py", source)) == count
