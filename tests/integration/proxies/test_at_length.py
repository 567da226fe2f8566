"""Proxies at length, by ``tests/run proxies`` only: silence, HTTP/2, and two gateways behind one address."""

import asyncio
import json
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from gateway.domain.scopes import AdminRole
from shared.process.ports import free_port
from tests.integration.asking import CHAT, chat
from tests.integration.proxies.places import (
    FULL,
    MODEL,
    SETTINGS,
    THINKS_S,
    Gateways,
    Place,
    place,
    proxy_answers,
    until_true,
)
from tests.integration.proxies.test_checks import text_of
from tests.support import programs
from tests.support.echo_engine import echo_engine
from tests.support.front_proxies import (
    CADDY,
    ENVOY,
    HAPROXY,
    NGINX,
    SILENCE,
    TRAEFIK,
    FrontProxy,
    ProxyKind,
    front_proxy,
)
from tests.support.processes import Gateway, House, answer_to, fetch, until

pytestmark = [
    pytest.mark.proxy,
    pytest.mark.skipif(not FULL, reason="takes minutes: tests/run proxies"),
]

SHORT_S = 12
"""The longest silence that a proxy allows here: a little more than an agent's."""
LONG_S = 30
MANY = 1100
"""Requests at once."""
_BOTH_S = 120.0
"""In which a proxy gives work to a gateway that has come back."""
_SHORT: Mapping[str, Mapping[str, str]] = {
    NGINX.name: {SILENCE: f"{SHORT_S}s"},
    HAPROXY.name: {SILENCE: f"{SHORT_S}s", "timeout tunnel 1h": f"timeout tunnel {SHORT_S}s"},
    ENVOY.name: {SILENCE: f"{SHORT_S}s"},
    TRAEFIK.name: {
        SILENCE: f"{SHORT_S}s",
        "responseHeaderTimeout: 0s": f"responseHeaderTimeout: {SHORT_S}s",
    },
    CADDY.name: {
        "header_timeout 0": f"header_timeout {SHORT_S}s",
        "read_timeout 0": f"read_timeout {SHORT_S}s",
    },
}

Words = list[str]


async def test_silence(behind: Gateways, front: Place, kind: ProxyKind, tmp_path: Path, found: Words) -> None:
    """With a proxy that allows 12 s of silence: tunnels and streams that wait are never silent for so long.
    An answer in one piece is, so the file allows more than the gateway does."""
    directory = tmp_path / f"short-{kind.name.lower()}"
    with place(behind, kind, directory, _SHORT[kind.name]) as short:
        log = directory.name + "-agent"
        agent = next(child for child in behind.house.children if child.name == log)
        whole, streamed, socket = await asyncio.gather(_whole(short), _streamed(short), _socket(short))
        tunnels = len(re.findall(r"\] connected ", agent.log.read_text()))
    assert streamed == answer_to("hi", 3)
    assert tunnels == 1, agent.tail()
    assert whole != 200, "the proxy did not cut what was silent for too long"
    found.append(f"tunnel and stream stay; in one piece {whole or 'cut'}, idle socket {socket}")


async def _whole(short: Place) -> int:
    """The status of an answer for which nothing is sent for long; 0 where the connection is cut."""
    async with short.client() as client:
        try:
            async with client.get(f"/admin/diagnosis/silence?s={LONG_S}") as response:
                return response.status
        except aiohttp.ClientError:
            return 0


async def _streamed(short: Place) -> str:
    """What a stream says that waits for so long for its first token."""
    body = chat(stream=True, max_tokens=3, script={"delay_s": LONG_S})
    async with short.client() as client, client.post(CHAT, json=body) as response:
        assert response.status == 200
        return text_of(await response.read())


async def _socket(short: Place) -> str:
    """What becomes of a client's WebSocket on which nobody says anything."""
    house, gateway, model = short.behind.house, short.behind.gateway, "echo-silent"
    async with echo_engine(model) as engine:
        agent = house.agent(gateway, engine.url, name=f"{short.proxy.at.directory.name}-echo")
        try:
            await asyncio.to_thread(house.wait_for_model, gateway, short.behind.key, model)
            url = f"{short.url.replace('http', 'ws', 1)}/engines/{model}/ws"
            async with connect(
                url, ssl=short.trust(), additional_headers=short.headers, proxy=None, ping_interval=None
            ) as socket:
                try:
                    await asyncio.wait_for(socket.recv(), LONG_S)
                except TimeoutError:
                    return "stays"
                except ConnectionClosed:
                    return "cut"
                return "answered"
        finally:
            await asyncio.to_thread(house.children.stop, agent)


async def test_http2(front: Place, found: Words) -> None:
    """A stream over HTTP/2, where the file offers it."""
    curl = programs.find("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    body = json.dumps(chat(stream=True, max_tokens=20, script={"tokens_per_s": 50, "delay_s": THINKS_S}))
    process = await asyncio.create_subprocess_exec(
        *(curl, "-sN", "--http2", "--cacert", str(front.proxy.at.certificate), "-w", "%{http_version}"),
        *("-H", f"authorization: Bearer {front.behind.key}", "-H", "content-type: application/json"),
        *("-d", body, f"{front.url}{CHAT}"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    stream, _, version = output.rpartition(b"\n\n")
    assert text_of(stream) == answer_to("hi", 20)
    assert version in (b"2", b"1.1")
    found.append("HTTP/2" if version == b"2" else "HTTP/1.1 only")


async def test_many_at_once(house: House, kind: ProxyKind, tmp_path: Path, found: Words) -> None:
    """More requests than Envoy's and nginx's defaults have connections for: all reach the gateway, and one
    more is answered. Then all go."""
    settings = {
        "TRUNKLINE_GATEWAY_QUEUE__MAX_REQUESTS": str(2 * MANY),
        "TRUNKLINE_GATEWAY_QUEUE__MAX_WAIT_S": "3600",
        "TRUNKLINE_GATEWAY_HTTP__COMMENT_S": "10",
    }
    gateway = house.gateway(environment=SETTINGS | settings)
    engine, key = house.engine("--model", MODEL), gateway.key("tests", role=AdminRole.VIEWER)
    with place(Gateways(house, gateway, engine, key), kind, tmp_path / "proxy") as front:

        def there() -> int:
            """Requests that wait or run, as the gateway says itself."""
            waiting = fetch(f"{gateway.url}/admin/queue", key=key)["waiting"]
            return int(waiting) + int(engine.stats()["running"])

        async with front.client(leaves_at_once=True) as client:
            body = chat(stream=True, script={"stepped": True, "delay_s": THINKS_S})
            asking: list[asyncio.Future[aiohttp.ClientResponse]] = []
            for count in range(100, MANY + 1, 100):  # no more handshakes at once than a proxy has room for
                asking += [asyncio.ensure_future(client.post(CHAT, json=body)) for _ in range(100)]
                await until_true("they are there", lambda count=count: there() == count)  # type: ignore[misc]
            async with asyncio.timeout(30), client.get("/v1/models") as response:
                assert response.status == 200
            for each in asking:
                each.cancel()
            for answer in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(answer, aiohttp.ClientResponse):
                    assert answer.status == 200
                    answer.close()
            await until_true("all are gone", lambda: there() == 0)
    found.append(f"{MANY} wait, and one more is answered")


async def test_two_gateways(
    house: House, kind: ProxyKind, front: Place, tmp_path: Path, found: Words
) -> None:
    """One address leads to both: an agent gets a session with each, and clients go on when one is killed."""
    engine = house.engine("--model", MODEL)
    ports = free_port(), free_port()
    first = house.gateway(name="a", port=ports[0], environment=SETTINGS)
    key = first.key("tests", role=AdminRole.VIEWER)
    trust: tuple[str, ...] = ()
    with front_proxy(kind, tmp_path / "proxy", ports) as proxy:
        trust = ("--ca-file", str(proxy.at.certificate))
        until("the proxy passes requests on", lambda: proxy_answers(proxy), 60.0)
        house.agent(first, engine.url, *trust, dial=proxy.url)
        house.wait_for_model(first, key, MODEL)
        house.children.stop(first.child)
        shutil.copytree(first.state, house.directory / "b-state")
        pair = [_one_of_two(house, name, port) for name, port in zip("ab", ports, strict=True)]
        for gateway in pair:
            house.wait_for_model(gateway, key, MODEL)
        before = await _until_both_are_asked(proxy, key, pair)
        both = await _ask(proxy, key, 24, at_once=True)
        await until_true("the logs have all", lambda: sum(_asked(pair)) >= sum(before) + 24)
        logs = [after - asked for after, asked in zip(_asked(pair), before, strict=True)]
        pair[1].child.signal(signal.SIGKILL)
        house.children.stop(pair[1].child)  # what it has taken nobody sends again
        crowd = await _ask(proxy, key, 24, at_once=True)
        alone = await _ask(proxy, key, 24, at_once=False)
    assert both == 24
    assert min(logs) > 0, logs
    assert crowd == 24
    assert alone == 24
    found.append(f"{logs[0]} and {logs[1]} of 24; one killed: {crowd} of 24 at once, then {alone} of 24")


async def _until_both_are_asked(proxy: FrontProxy, key: str, pair: Sequence[Gateway]) -> list[int]:
    """What each was asked by then. After the first gateway's absence nginx tries it with one request in
    ``fail_timeout``, and gives it more only when one that was tried is over: an agent's tunnel never is."""
    count = 0
    async with asyncio.timeout(_BOTH_S):
        while min(_asked(pair)) == 0:
            count += await _ask(proxy, key, 2, at_once=True)
    await until_true("the logs have all", lambda: sum(_asked(pair)) >= count)
    return _asked(pair)


def _asked(pair: Sequence[Gateway]) -> list[int]:
    """How many requests for chats each has answered."""
    return [gateway.child.log.read_text().count(f'"path":"{CHAT}"') for gateway in pair]


def _one_of_two(house: House, name: str, port: int) -> Gateway:
    peers = {"TRUNKLINE_GATEWAY_CLUSTER__PROCESS": name, "TRUNKLINE_GATEWAY_CLUSTER__PEERS": '["a", "b"]'}
    return house.gateway(name=name, port=port, environment=SETTINGS | peers)


async def _ask(proxy: FrontProxy, key: str, count: int, *, at_once: bool) -> int:
    """How many were answered rightly."""
    place = Place(Gateways(None, None, None, key), proxy)  # type: ignore[arg-type]

    async def one(client: aiohttp.ClientSession) -> bool:
        body = chat(stream=True, max_tokens=20, script={"tokens_per_s": 40, "delay_s": THINKS_S})
        async with client.post(CHAT, json=body) as response:
            return text_of(await response.read()) == answer_to("hi", 20)

    async with place.client() as client:
        if at_once:
            return sum(await asyncio.gather(*(one(client) for _ in range(count))))
        return sum([await one(client) for _ in range(count)])
