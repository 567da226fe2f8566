"""The dashboard's files over raw ASGI: what every browser gets, and what no name gets."""

import gzip
import re
from pathlib import Path

import pytest

from gateway.api.ui.files import STATIC, UiFile, read_files
from tests.gateway.api.support import Surface, error_in

FILE_LINES = 400
NAMES = sorted(read_files())
SCRIPTS = [name for name in NAMES if name.endswith(".js")]


async def test_the_page_is_there_for_everybody_and_runs_only_what_is_here() -> None:
    call = await Surface().get("/ui/", key=False)
    assert (call.status, call.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert call.content == (STATIC / "index.html").read_bytes()
    policy = dict(each.strip().split(" ", 1) for each in call.headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert call.headers["x-content-type-options"] == "nosniff"
    assert call.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in call.headers


@pytest.mark.parametrize("name", NAMES)
async def test_every_file_has_its_type_the_policy_and_a_tag(name: str) -> None:
    call = await Surface().get(f"/ui/{name}", key=False)
    kind = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}
    assert call.status == 200
    assert call.headers["content-type"].partition(";")[0] == kind[name.rpartition(".")[2]]
    assert call.headers["content-security-policy"].startswith("default-src 'none'")
    assert (call.headers["cache-control"], call.headers["vary"]) == ("no-cache", "accept-encoding")
    assert call.headers["etag"].startswith('W/"')


@pytest.mark.parametrize(
    "path",
    [
        "/ui/nothing",
        "/ui/js",
        "/ui/js/",
        "/ui/../routes.py",
        "/ui/..",
        "/ui/js/../../files.py",
        "/ui/%2e%2e/files.py",
        "/ui/js\\main.js",
        "/ui//etc/passwd",
        "/ui/index.html/",
        "/ui/index.html\0.js",
        "/ui/./index.html",
        "/ui/__init__.py",
        "/uix",
    ],
)
async def test_no_other_name_gets_anything(path: str) -> None:
    call = await Surface().get(path, key=False)
    assert (call.status, error_in(call.content)["code"]) == (404, "unknown_url")


async def test_a_path_without_its_slash_leads_to_the_page() -> None:
    call = await Surface().get("/ui", key=False)
    assert (call.status, call.headers["location"], call.content) == (308, "ui/", b"")


async def test_a_browser_that_has_a_file_is_told_that_it_has_not_changed() -> None:
    surface = Surface()
    tag = (await surface.get("/ui/style.css", key=False)).headers["etag"].encode()
    for field in (tag, tag.removeprefix(b"W/"), b'"other", ' + tag, b"*"):
        call = await surface.get("/ui/style.css", (b"if-none-match", field), key=False)
        assert (call.status, call.content, call.headers["etag"]) == (304, b"", tag.decode())
        assert call.headers["cache-control"] == "no-cache"
    call = await surface.get("/ui/pages.css", (b"if-none-match", tag), key=False)
    assert call.status == 200


async def test_a_changed_file_has_another_tag(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("one")
    first = UiFile.read(tmp_path / "a.js")
    (tmp_path / "a.js").write_text("two")
    assert UiFile.read(tmp_path / "a.js").etag != first.etag


async def test_files_are_compressed_for_those_that_take_it() -> None:
    surface, plain = Surface(), (STATIC / "style.css").read_bytes()
    call = await surface.get("/ui/style.css", (b"accept-encoding", b"br, gzip;q=0.8"), key=False)
    assert call.headers["content-encoding"] == "gzip"
    assert gzip.decompress(call.content) == plain
    for field in (b"br", b"gzip;q=0", b""):
        call = await surface.get("/ui/style.css", (b"accept-encoding", field), key=False)
        assert "content-encoding" not in call.headers
        assert call.content == plain


async def test_the_files_are_only_read() -> None:
    call = await Surface().post("/ui/", b"{}")
    assert (call.status, call.headers["allow"]) == (405, "GET, HEAD")


def test_the_page_has_nothing_inline_and_names_nothing_elsewhere() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>", page) == ['<script type="module" src="js/main.js">']
    assert not re.search(r"<style|\sstyle=|\son\w+=|https?:|//", page.replace("<!doctype html>", ""))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_no_markup_of_texts_and_is_short(name: str) -> None:
    source = (STATIC / name).read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", source
    )
    assert not re.search(r"https?://(?!www\.w3\.org)", source)
    assert len(source.splitlines()) <= FILE_LINES


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_module_that_a_script_imports_is_there(name: str) -> None:
    source = (STATIC / name).read_text()
    for wanted in re.findall(r'from "([^"]+)"', source):
        assert wanted.startswith(("./", "../"))
        assert (STATIC / name).parent.joinpath(wanted).is_file(), wanted


def test_every_alert_names_a_section_of_the_runbook() -> None:
    runbook = (STATIC.parents[3] / "docs" / "runbook.md").read_text()
    sections = set(re.findall(r"^## (\w+)$", runbook, re.MULTILINE))
    named = re.findall(r'"(Trunkline\w+)"', (STATIC / "js" / "pages" / "alerts.js").read_text())
    assert len(set(named)) > 5
    assert set(named) <= sections
