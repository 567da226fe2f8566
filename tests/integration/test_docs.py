"""README and ``docs/`` name only what exists, and explain every error and warning of the programs."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from gateway.domain import errors
from gateway.domain.errors import RequestError
from shared import __version__

_ROOT = Path(__file__).parents[2]
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
_TROUBLES = _ROOT / "docs" / "troubleshooting.md"

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)

_TELLING = ("warning", "error", "exception", "critical")
_OWN_PROCESSES = (_ROOT / "agent" / "engines" / "torch", _ROOT / "agent" / "serve")
"""The built-in engine and the server of own models: what their processes say is shown as their last words, as
of any engine."""

_SOURCE = re.compile(r"`((?:gateway|agent|shared|tests|deploy)/(?!\.)[\w./-]*\w)`")
"""A file or folder of the repository, named in a code span."""

_MAY_TELL = re.compile(rf"\bcode\s*=|\.\s*(?:{'|'.join(_TELLING)})\b")
"""What stands in every file that has a code of an error or logs a warning."""

_TAKEN_OVER = ("code", "error.code")
"""Codes that come from an error which was raised with a code elsewhere in the sources."""


# --- Links ---


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_or_a_heading_leads_there(page: Path) -> None:
    assert [link for link in _links(page) if not _leads_somewhere(page, link)] == []


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_every_path_of_the_sources_that_a_page_names_is_there(page: Path) -> None:
    assert {path for path in _SOURCE.findall(page.read_text()) if not (_ROOT / path).exists()} == set()


def test_every_page_is_reached_from_the_readme() -> None:
    reached, further = set[Path](), {_ROOT / "README.md"}
    while further:
        page = further.pop()
        reached.add(page)
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in _links(page)}
        further |= targets.intersection(_PAGES) - reached
    assert set(_PAGES) - reached == set()


def test_headings_have_the_names_that_github_gives_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# An agent's log\n```\n# no heading\n```\n## `a_b` and [c](d.md), e\n## Same\n## Same\n")
    assert _anchors(page) == {"an-agents-log", "a_b-and-c-e", "same", "same-1"}


def _links(page: Path) -> list[str]:
    """Those within the repository, outside code."""
    text = _CODE_SPAN.sub("", _CODE_BLOCK.sub("", page.read_text()))
    return [link for link in _LINK.findall(text) if "://" not in link and not link.startswith("mailto:")]


def _leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not target.is_relative_to(_ROOT):
        return False
    return not anchor or (target.suffix == ".md" and anchor in _anchors(target))


@cache
def _anchors(page: Path) -> frozenset[str]:
    seen, found = Counter[str](), set[str]()
    for heading in _HEADING.findall(_CODE_BLOCK.sub("", page.read_text())):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


# --- The version ---


def test_the_newest_section_of_the_changelog_is_that_of_the_version() -> None:
    assert _HEADING.findall((_ROOT / "CHANGELOG.md").read_text())[1].split()[0] == __version__


def test_the_package_takes_its_version_from_the_sources() -> None:
    settings = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    assert "version" in settings["project"]["dynamic"]
    assert settings["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "shared.__version__"}


# --- Troubles ---


def test_every_error_code_that_a_client_can_get_has_a_row_with_its_status() -> None:
    rows = _rows("A client")
    told = {code: row[1] for code, row in rows.items()}
    codes = dict(_codes())
    assert len(codes) > 50
    assert {code for code in codes if code not in told} == set()
    wrong = {code: told[code] for code, status in codes.items() if status and str(status) not in told[code]}
    assert wrong == {}


def test_the_client_table_has_no_codes_that_nobody_sends() -> None:
    assert set(_rows("A client")) - dict(_codes()).keys() == set()


def test_every_warning_and_error_of_the_gateways_log_has_a_row_and_no_other_event_has() -> None:
    events = set(_events(_ROOT / "gateway"))
    assert len(events) > 40
    assert set(_rows("The gateway's log")) ^ events == set()


def test_every_warning_and_error_of_an_agents_log_has_a_row() -> None:
    events = {*_events(_ROOT / "agent", but=_OWN_PROCESSES), *_events(_ROOT / "shared")}
    assert len(events) > 25
    assert events - _rows("An agent's log").keys() == set()


def test_every_row_says_why_and_what_to_do() -> None:
    cells = [
        row for section in re.findall(r"^## (.+)$", _TROUBLES.read_text(), re.M) for row in _table(section)
    ]
    assert len(cells) > 150
    assert [row for row in cells if not all(row) or len(row) not in (3, 4)] == []


def _table(section: str) -> Iterator[list[str]]:
    """The rows of all tables in a section of the page, without their heads."""
    text = _TROUBLES.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = text.splitlines()
    for before, line in zip(["", "", *lines], ["", *lines], strict=False):
        rule = before.startswith("| ---")
        if line.startswith("|") and not line.startswith("| ---") and (rule or before.startswith("|")):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def _rows(section: str) -> Mapping[str, list[str]]:
    """Rows by what stands in backquotes in their first cell."""
    return {name: row for row in _table(section) for name in re.findall(r"`([^`]+)`", row[0])}


@cache
def _codes() -> tuple[tuple[str, int | None], ...]:
    """Every code in the sources and its status; None where only the row knows it."""
    return tuple(_found_codes())


def _found_codes() -> Iterator[tuple[str, int | None]]:
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, RequestError) and kind is not RequestError:
            yield kind.code, None if name == "EngineRefused" else kind.status
    for node in (node for nodes in _nodes(_ROOT / "gateway").values() for node in nodes):
        if isinstance(node, ast.ClassDef):
            yield from ((code, 401) for code in _class_codes(node))
        elif isinstance(node, ast.Call):
            yield from _call_codes(node)


def _class_codes(node: ast.ClassDef) -> Iterator[str]:
    """Of exceptions that become an error of a client with the code they have (those of refused tokens)."""
    for each in node.body:
        if isinstance(each, ast.Assign) and [ast.unparse(target) for target in each.targets] == ["code"]:
            value = ast.literal_eval(each.value)
            if isinstance(value, str) and not hasattr(errors, node.name):
                yield value


def _call_codes(node: ast.Call) -> Iterator[tuple[str, int | None]]:
    kind = getattr(errors, ast.unparse(node.func).rpartition(".")[2], None)
    if not (isinstance(kind, type) and issubclass(kind, RequestError)):
        return
    for keyword in node.keywords:
        if keyword.arg == "code" and ast.unparse(keyword.value) not in _TAKEN_OVER:
            for code in _texts(keyword.value):
                yield code, None if kind is errors.EngineRefused else kind.status


def _texts(value: ast.expr) -> list[str]:
    """What a code may be. Fails for an expression that tells no code."""
    if isinstance(value, ast.JoinedStr):
        assert ast.unparse(value) == "f'{kind}_not_allowed'", "say here what this code may be"
        return [f"{kind}_not_allowed" for kind in ("model", "route", "tier")]
    texts = [each.value for each in ast.walk(value) if isinstance(each, ast.Constant)]
    assert [type(text) for text in texts] == [str] * max(1, len(texts)), ast.unparse(value)
    return [str(text) for text in texts]


def _events(package: Path, but: tuple[Path, ...] = ()) -> Iterator[str]:
    """The names of all events that a package logs as warnings or errors. One whose name is made when it is
    logged has a ``code`` beside it."""
    for path, nodes in _nodes(package).items():
        if not any(path.is_relative_to(folder) for folder in but):
            aliases = set(_aliases(nodes))
            calls = (node for node in nodes if isinstance(node, ast.Call))
            yield from (
                _event(call)
                for call in calls
                if _tells(call.func) or (aliases and ast.unparse(call.func) in aliases)
            )


def _tells(function: ast.AST) -> bool:
    """Whether it is a method of a logger for warnings or errors."""
    return (
        isinstance(function, ast.Attribute)
        and function.attr in _TELLING
        and "log" in ast.unparse(function.value).lower()
    )


def _aliases(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Names for such a method: ``say = log.warning if failed else log.info``."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            called = {id(each.func) for each in ast.walk(node.value) if isinstance(each, ast.Call)}
            if any(_tells(each) and id(each) not in called for each in ast.walk(node.value)):
                yield from (ast.unparse(target) for target in node.targets)


def _event(call: ast.Call) -> str:
    codes = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    name = call.args[0] if isinstance(call.args[0], ast.Constant) else codes[0]
    value = ast.literal_eval(name)
    assert isinstance(value, str), ast.unparse(call)
    return value


@cache
def _nodes(package: Path) -> Mapping[Path, Sequence[ast.AST]]:
    """Of each file that may tell something: its classes, calls and assignments. To walk through all there is
    takes most time."""
    kinds = (ast.ClassDef, ast.Call, ast.Assign)
    texts = {path: path.read_text() for path in sorted(package.rglob("*.py"))}
    return {
        path: [node for node in ast.walk(ast.parse(text, str(path))) if isinstance(node, kinds)]
        for path, text in texts.items()
        if _MAY_TELL.search(text)
    }
