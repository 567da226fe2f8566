"""What the gateway answers where people and programs look first."""

import re

import orjson
import pytest

from gateway.api.openapi import document
from gateway.api.pages import docs_page
from tests.gateway.api.support import Surface

BROWSER = (b"accept", b"text/html,application/xhtml+xml,*/*;q=0.8")


async def test_the_root_says_what_this_is_and_where_to_go() -> None:
    call = await Surface().get("/", (b"accept", b"*/*"), key=False)
    said = orjson.loads(call.content)
    assert call.status == 200
    assert (said["name"], said["base_url"], said["models"]) == ("trunkline", "/v1", "/v1/models")


async def test_a_browser_gets_a_page_that_loads_nothing() -> None:
    for path in ("/", "/docs"):
        call = await Surface().get(path, BROWSER, key=False)
        assert call.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in call.headers["content-security-policy"]
        page = call.content.decode()
        assert not re.search(r"<script|src=|https?://(?!THIS-HOST)|@import|<link", page)


async def test_the_docs_name_every_path_of_the_description() -> None:
    surface = Surface()
    described = orjson.loads((await surface.get("/openapi.json", key=False)).content)
    page = (await surface.get("/docs", key=False)).content.decode()
    for path in described["paths"]:
        assert f"<code>{path}</code>" in page
    assert "<td>Answer a chat (OpenAI)</td><td>route <code>chat</code></td>" in page


async def test_the_docs_say_which_role_a_page_takes() -> None:
    path = "/admin/agents/{agent}/drain"
    item = {
        "post": {"operationId": "drain", "summary": "Drain agent; takes the role operator", "responses": {}}
    }
    page = docs_page(document({path: item})).decode()
    assert "<td>Drain agent</td><td>role <code>operator</code></td>" in page


@pytest.mark.parametrize("path", ["/health", "/healthz"])
async def test_the_process_answers_whoever_asks(path: str) -> None:
    call = await Surface().get(path, key=False)
    assert (call.status, orjson.loads(call.content)) == (200, {"status": "ok"})


async def test_the_version_is_for_holders_of_a_key() -> None:
    surface = Surface()
    assert (await surface.get("/version", key=False)).status == 401
    assert orjson.loads((await surface.get("/version")).content)["name"] == "trunkline"


async def test_models_are_listed_without_the_version_in_the_path_too() -> None:
    surface = Surface()
    whole = orjson.loads((await surface.get("/models")).content)
    assert whole == orjson.loads((await surface.get("/v1/models")).content) | {"models": []}
    assert (await surface.get("/models", key=False)).status == 401
    assert (await surface.get("/models/nowhere")).status == 404


@pytest.mark.parametrize("path", ["/docs", "/health", "/ping", "/version", "/models", "/api/tags"])
async def test_what_the_gateway_says_itself_is_only_read(path: str) -> None:
    call = await Surface().post(path, b"{}")
    assert (call.status, call.headers["allow"]) == (405, "GET, HEAD")
