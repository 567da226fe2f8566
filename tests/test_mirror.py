"""Tests mirror the packages: a module has its test file, or ``mirror.toml`` says which tests are about it."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

PACKAGES = ("gateway", "agent", "shared")
COVERED: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / "mirror.toml").read_text("utf-8"))
"""Modules without a test file of their own, and the test files that are about them."""


def modules() -> set[str]:
    found = (path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path) for path in found if path.name not in ("__init__.py", "__main__.py")}


def mirror_of(module: str) -> str:
    folder, _, name = module.rpartition("/")
    return f"tests/{folder}/test_{name}"


def test_every_module_has_its_test_file_or_names_those_that_are_about_it() -> None:
    without = {module for module in modules() if not (ROOT / mirror_of(module)).exists()}
    assert without - COVERED.keys() == set(), "give each its test file, or a line in tests/mirror.toml"


def test_the_exceptions_are_modules_without_a_test_file_of_their_own() -> None:
    assert COVERED.keys() - modules() == set()
    assert {module for module in COVERED if (ROOT / mirror_of(module)).exists()} == set()


def test_the_tests_that_the_exceptions_name_exist() -> None:
    named = {test for tests in COVERED.values() for test in tests}
    assert {test for test in named if not (ROOT / test).is_file()} == set()
    assert [module for module, tests in COVERED.items() if not tests] == []


def test_every_test_file_has_its_module_or_is_about_behaviour_over_several() -> None:
    mirrors = {mirror_of(module) for module in modules()}
    files = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / "tests" / package).rglob("test_*.py")
        if path.parent.name != "behaviour"
    }
    assert files - mirrors == set(), "move them to behaviour/ of their room, or name them after their module"
