"""Files and functions, of the product and of its tests, stay short enough to be read at once."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIRECTORIES = ("gateway", "agent", "shared", "tests", "deploy")

FILE_LINES = 400
FUNCTION_LINES = 60


def too_long(path: str, source: str) -> list[str]:
    """What of a file is longer than it may be, each as a line for people."""
    found = []
    if (lines := len(source.splitlines())) > FILE_LINES:
        found.append(f"{path} has {lines} lines, of {FILE_LINES} at most: divide it by what it answers")
    for node in ast.walk(ast.parse(source)):
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
    ],
)
def test_what_is_too_long_is_found(source: str, count: int) -> None:
    assert len(too_long("file.py", source)) == count
