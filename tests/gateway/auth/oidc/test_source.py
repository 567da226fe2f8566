"""When an issuer's keys are fetched, and what happens when they cannot be."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest

from gateway.auth.oidc import KeySource
from gateway.auth.oidc.fetch import Fetched, FetchFailed
from gateway.auth.oidc.source import discovery_url
from gateway.domain.oidc import OidcTable
from tests.gateway.auth.minting import ISSUER, issuer, jwk, jwks

KEYS = jwks(jwk("ES256", "k1"))
NEW_KEYS = jwks(jwk("ES256", "k1"), jwk("ES256", "k2", "b"))


class Web:
    """What each URL answers; counts."""

    def __init__(self, pages: dict[str, bytes | None], max_age_s: float | None = None) -> None:
        self.pages = pages
        self.max_age_s = max_age_s
        self.asked: list[str] = []
        self.now_s = 0.0

    async def get(self, url: str, ca_file: Path | None) -> Fetched:
        self.asked.append(url)
        page = self.pages.get(url)
        if page is None:
            raise FetchFailed("it is away")
        return Fetched(page, self.max_age_s)


def source_of(web: Web, made: OidcTable | None = None) -> KeySource:
    return KeySource(made or issuer(refresh_s=600.0, stale_s=1000.0), lambda: web.now_s, web.get)


def has(source: KeySource, kid: str) -> bool:
    return source.keys is not None and source.keys.find(kid, "ES256") is not None


@pytest.mark.parametrize(
    ("max_age_s", "wait_s"),
    [(None, 600.0), (300.0, 300.0), (0.0, 60.0), (1e9, 86_400.0), (86_400.0, 86_400.0)],
)
async def test_keys_keep_as_long_as_the_issuer_says_within_bounds(
    max_age_s: float | None, wait_s: float
) -> None:
    web = Web({"https://id.example/keys": KEYS}, max_age_s)
    assert await source_of(web).refresh() == wait_s


async def test_the_keys_before_stay_while_the_issuer_is_away_and_go_at_last() -> None:
    web = Web({"https://id.example/keys": KEYS})
    source = source_of(web)
    await source.refresh()
    web.pages.clear()
    waits = []
    for web.now_s in (100.0, 200.0, 400.0, 999.0):
        waits.append(await source.refresh())
        assert has(source, "k1")
    assert waits == [2.0, 4.0, 8.0, 2.0]
    web.now_s = 1000.0
    await source.refresh()
    assert source.keys is None
    assert not has(source, "k1")
    web.pages["https://id.example/keys"] = KEYS
    await source.refresh()
    assert has(source, "k1")


async def test_after_failures_it_waits_longer_up_to_a_minute() -> None:
    web = Web({})
    source = source_of(web)
    assert [await source.refresh() for _ in range(7)] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    web.pages["https://id.example/keys"] = KEYS
    await source.refresh()
    web.pages.clear()
    assert [await source.refresh() for _ in range(7)] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


@pytest.mark.parametrize("page", [b"<html>", b'{"keys":[]}', jwks({"kty": "oct", "k": "AA"})])
async def test_a_document_without_good_keys_replaces_nothing(page: bytes) -> None:
    web = Web({"https://id.example/keys": KEYS})
    source = source_of(web)
    await source.refresh()
    web.pages["https://id.example/keys"] = page
    await source.refresh()
    assert has(source, "k1")


async def test_a_fault_of_ours_ends_neither_the_task_nor_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web({"https://id.example/keys": KEYS})
    source = source_of(web)
    await source.refresh()

    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("gateway.auth.oidc.source.read_keyset", broken)
    assert await source.refresh() == 2.0
    assert has(source, "k1")


# --- discovery ---


def discovered(document: object, name: str = ISSUER) -> tuple[Web, KeySource]:
    pages = {discovery_url(name): orjson.dumps(document), "https://keys.example/k": KEYS}
    web = Web({**pages, "http://127.0.0.1:1/k": KEYS})
    return web, source_of(web, issuer(issuer=name, jwks_url=None))


async def test_where_the_keys_are_is_found_by_discovery() -> None:
    web, source = discovered({"issuer": ISSUER, "jwks_uri": "https://keys.example/k"})
    await source.refresh()
    assert web.asked == [f"{ISSUER}/.well-known/openid-configuration", "https://keys.example/k"]
    assert source.keys is not None


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://other.example", "jwks_uri": "https://keys.example/k"},
        {"jwks_uri": "https://keys.example/k"},
        {"issuer": ISSUER},
        {"issuer": ISSUER, "jwks_uri": 5},
        {"issuer": ISSUER, "jwks_uri": "http://keys.example/k"},
        {"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"},
        {"issuer": ISSUER, "jwks_uri": "http://127.0.0.1:1/k"},
        {"issuer": ISSUER, "jwks_uri": "https://127.0.0.1:1/k"},
        {"issuer": ISSUER, "jwks_uri": "https://user:word@keys.example/k"},
        [],
    ],
)
async def test_a_discovery_document_that_leads_astray_is_not_followed(document: object) -> None:
    web, source = discovered(document)
    await source.refresh()
    assert source.keys is None
    assert len(web.asked) == 1


# --- the task ---


class Loop:
    """Runs a source's task and says after how long each wait is over."""

    def __init__(self, web: Web, source: KeySource, monkeypatch: pytest.MonkeyPatch) -> None:
        self.web, self.source = web, source
        self.slept: list[float] = []
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.web.now_s += max(0.0, seconds)

    async def until(self, condition: Callable[[], object]) -> None:
        task = asyncio.get_running_loop().create_task(self.source.run())
        turn: Callable[[], Awaitable[object]] = asyncio.Event().wait
        try:
            async with asyncio.timeout(5):
                while not condition():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.001):
                            await turn()
        finally:
            task.cancel()


async def test_an_unknown_key_has_newer_ones_fetched_once_in_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    web = Web({"https://id.example/keys": KEYS})
    source = source_of(web)
    loop = Loop(web, source, monkeypatch)

    def asks() -> bool:
        if source.keys is not None and not has(source, "k2"):
            source.key_unknown.set()
            if len(web.asked) == 3:
                web.pages["https://id.example/keys"] = NEW_KEYS
        return has(source, "k2")

    web.now_s = 100.0
    await loop.until(asks)
    assert len(web.asked) == 4
    assert [max(0.0, seconds) for seconds in loop.slept] == [0.0, 30.0, 30.0]
