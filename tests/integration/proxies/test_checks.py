"""What clients and agents need of a proxy, with each of the files in ``deploy/proxy`` as operators copy it.

By default nginx and HAProxy are tried, with small bodies; ``tests/run proxies`` tries all of them at length.
"""

import asyncio
import hashlib
import io
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from yarl import URL

from gateway.tools.doctor.remedies import REMEDIES
from shared.process.cli import build
from tests.integration.asking import CHAT, chat
from tests.integration.proxies.places import (
    BODY_BYTES,
    ELSEWHERE,
    FULL,
    MIB,
    SLASHED,
    THINKS_S,
    Place,
    forget_peak,
    peak_bytes,
    stored_bytes,
    until_true,
)
from tests.support.echo_engine import echo_engine
from tests.support.processes import answer_to

pytestmark = pytest.mark.proxy

FILE_MIB = 512 if FULL else 16
GROWTH_MIB = 48
"""What a process may grow by while a file passes through: not with its length."""
_PIECE = os.urandom(MIB)
_UNTIL_S = 30.0

_LATER = {"delay_s": THINKS_S}

Words = list[str]


async def test_stream(front: Place, found: Words) -> None:
    """Events leave one by one: the engine writes a token only when it is told to. It stops when the client
    goes."""
    engine = front.behind.engine
    body = chat(stream=True, max_tokens=400, script={"stepped": True, "delay_s": THINKS_S})
    received = b""

    async def read(response: aiohttp.ClientResponse) -> None:
        nonlocal received
        async for piece in response.content.iter_any():
            received += piece

    before = await asyncio.to_thread(engine.stats)
    async with front.client() as client, client.post(CHAT, json=body) as response:
        assert response.status == 200
        reading = asyncio.ensure_future(read(response))
        async with asyncio.timeout(_UNTIL_S):
            for count in range(1, 5):
                await engine.step(lambda count=count: received.count(b'"content":"') >= count)  # type: ignore[misc]
        sent = (await asyncio.to_thread(engine.stats))["sent_tokens"] - before["sent_tokens"]
        assert sent < 12, "several tokens came together"
        reading.cancel()
    async with asyncio.timeout(_UNTIL_S):
        await engine.step(lambda: engine.stats()["running"] == 0)
    assert engine.stats()["cancelled"] == before["cancelled"] + 1
    found.append("each event at once")


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "in one piece"])
async def test_client_goes(front: Place, streaming: bool, found: Words) -> None:
    """While nothing is sent: the gateway hears of it, and the engine stops."""
    engine = front.behind.engine
    before = await asyncio.to_thread(engine.stats)
    async with front.client(leaves_at_once=True) as client:
        script = {"stepped": True, "delay_s": THINKS_S} if streaming else {"delay_s": 600}
        asking = asyncio.ensure_future(client.post(CHAT, json=chat(stream=streaming, script=script)))
        await until_true("it runs", lambda: engine.stats()["running"] == before["running"] + 1)
        if streaming:
            response = await asking
            assert response.status == 200
            response.close()
        else:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await until_true("the engine stops", lambda: engine.stats()["running"] == before["running"], 20.0)
    assert engine.stats()["cancelled"] == before["cancelled"] + 1
    found.append("the engine stops")


async def test_upload(front: Place, found: Words) -> None:
    """A file passes on while it is sent, and comes back the same; no process holds it in memory."""
    gateway = front.behind.gateway
    pids = [*front.proxy.pids(), gateway.child.pid]
    sums = [hashlib.sha256(), hashlib.sha256()]
    before_bytes = await asyncio.to_thread(stored_bytes, gateway)

    def half_is_stored() -> bool:
        return stored_bytes(gateway) >= before_bytes + (FILE_MIB // 2 - 6) * MIB

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(FILE_MIB):
            if number == FILE_MIB // 2:  # the first half is at the gateway before the second is sent
                await until_true("half of it is stored", half_is_stored, 25.0)
            piece = number.to_bytes(8, "big") + _PIECE[8:]
            sums[0].update(piece)
            yield piece

    async with front.client() as client:
        await _small_file(client)
        grown = [_Growth(pid) for pid in pids]
        async with client.post("/v1/files", data=form_of(pieces())) as stored:
            assert stored.status == 200, await stored.text()
            file = await stored.json()
        async with client.get(f"/v1/files/{file['id']}/content") as content:
            assert content.status == 200
            async for data in content.content.iter_chunked(MIB):
                sums[1].update(data)
        async with client.delete(f"/v1/files/{file['id']}") as deleted:
            assert deleted.status == 200
    assert sums[0].digest() == sums[1].digest()
    more = [growth.mib() for growth in grown]
    assert max(more) < GROWTH_MIB, more
    found.append(f"{FILE_MIB} MiB in and out; proxy +{sum(more[:-1])} MiB, gateway +{more[-1]} MiB")


class _Growth:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        forget_peak(pid)
        self._began = peak_bytes(pid)

    def mib(self) -> int:
        return max(0, round((peak_bytes(self._pid) - self._began) / MIB))


async def _small_file(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/files", data=form_of(_PIECE)) as stored:
        assert stored.status == 200, await stored.text()


def form_of(content: object) -> aiohttp.FormData:
    form = aiohttp.FormData(quote_fields=False)
    form.add_field("purpose", "user_data")
    form.add_field("file", content, filename="large.bin", content_type="application/octet-stream")
    return form


async def test_websocket(front: Place, found: Words) -> None:
    """Messages of all lengths in both directions, and the code with which an engine closes."""
    house, gateway = front.behind.house, front.behind.gateway
    model = f"echo-{front.proxy.kind.name.lower()}"
    async with echo_engine(model) as engine:
        trust = ("--ca-file", str(front.proxy.at.certificate))
        agent = house.agent(gateway, engine.url, *trust, name=f"{model}-agent", dial=front.url)
        try:
            await asyncio.to_thread(house.wait_for_model, gateway, front.behind.key, model)
            url = front.url.replace("http", "ws", 1)
            for path in (f"/v1/realtime?model={model}", f"/engines/{model}/ws"):
                options: Any = {"ssl": front.trust(), "additional_headers": front.headers, "proxy": None}
                async with connect(url + path, compression=None, max_size=None, **options) as socket:
                    for message in ("hello", b"\x00" * 70_000, "x" * MIB):
                        await socket.send(message)
                        assert await socket.recv() == message
                    await socket.send("close 4007 engine is tired")
                    with pytest.raises(ConnectionClosed) as caught:
                        await socket.recv()
                assert caught.value.rcvd is not None
                assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4007, "engine is tired")
        finally:
            await asyncio.to_thread(house.children.stop, agent)
    found.append("1 MiB messages, closing code kept")


async def test_body_over_the_limit(front: Place, found: Words) -> None:
    """Whoever refuses a body says so in its own way: the gateway with an error that SDKs read."""
    async with front.client() as client:
        asked = json.dumps(chat(messages=[{"role": "user", "content": "x" * (BODY_BYTES + MIB)}]))
        headers = {"content-type": "application/json"}
        async with client.post(CHAT, data=io.BytesIO(asked.encode()), headers=headers) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "request_too_large"
        who = await _who_refuses(front, 600 * MIB)
    found.append(f"gateway's 413 as JSON; 600 MiB: {who}")


async def _who_refuses(front: Place, length: int) -> str:
    """A file of so many bytes is announced, and sent until there is an answer: Traefik and Caddy, as all
    servers in Go, pass an answer on only while the body comes."""
    head = (
        f"POST /v1/files HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {front.behind.key}\r\n"
        f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {length}\r\n\r\n--b\r\n"
    )
    reader, writer = await asyncio.open_connection("localhost", front.proxy.at.port, ssl=front.trust())
    answering = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
    try:
        writer.write(head.encode())
        async with asyncio.timeout(_UNTIL_S):
            while not answering.done():
                writer.write(bytes(64 * 1024))
                await asyncio.wait([answering], timeout=0.1)
            answer = await answering
            assert answer.startswith(b"HTTP/1.1 413 "), answer
            return "the gateway" if b"application/json" in answer.lower() else "the proxy"
    finally:
        answering.cancel()
        writer.transport.abort()


async def test_client_address(front: Place, found: Words) -> None:
    """The gateway knows who asks, and believes nothing that a client claims."""
    async with front.client(ELSEWHERE) as client:
        claimed = {
            "x-forwarded-for": "203.0.113.9",
            "x-real-ip": "203.0.113.9",
            "forwarded": "for=203.0.113.9",
        }
        async with client.post(CHAT, json=chat(max_tokens=1, script=_LATER), headers=claimed) as response:
            assert response.status == 200
            asked = response.headers["x-request-id"]
    lines = front.behind.gateway.child.log
    await until_true("it is in the log", lambda: asked in lines.read_text())
    line = next(
        json.loads(line) for line in lines.read_text().splitlines() if asked in line and '"client"' in line
    )
    assert line["client"] == ELSEWHERE
    found.append("the client's, forged headers ignored")


async def test_path(front: Place, found: Words) -> None:
    """The name of a model with an escaped slash arrives as it was written."""
    async with front.client() as client:
        path = f"{front.url}/engines/{SLASHED.replace('/', '%2F')}/v1/models?a=b%2Fc%20d"
        async with client.get(URL(path, encoded=True)) as response:
            assert response.status == 200, await response.text()
    asked = (await asyncio.to_thread(front.behind.engine.stats))["requests"]
    assert "GET /v1/models?a=b%2Fc%20d" in asked
    found.append("%2F kept")


async def test_metrics(front: Place, found: Words) -> None:
    """They are for the operator's own networks, even with a key."""
    statuses = {}
    for source in (ELSEWHERE, "127.0.0.1"):
        async with front.client(source) as client:
            for path in ("/metrics", "/%6Detrics"):
                async with client.get(URL(front.url + path, encoded=True)) as response:
                    statuses[source, path] = response.status
    assert statuses["127.0.0.1", "/metrics"] == 200
    outside = {statuses[ELSEWHERE, "/metrics"], statuses[ELSEWHERE, "/%6Detrics"]}
    assert outside <= {403, 404}, statuses
    found.append(f"private ({statuses[ELSEWHERE, '/metrics']})")


async def test_plain_http(front: Place, found: Words) -> None:
    async with aiohttp.ClientSession() as client:
        url = f"http://localhost:{front.proxy.at.plain_port}/v1/models?a=b"
        async with client.get(url, allow_redirects=False) as response:
            assert response.status in (301, 308)
            assert response.headers["location"].startswith("https://localhost")
            assert response.headers["location"].endswith("/v1/models?a=b")
            found.append(f"sent to https ({response.status})")


async def test_one_gateway_away(front: Place, found: Words) -> None:
    """At the second address nobody listens, and no client notices."""
    async with front.client() as client:
        for count in range(20):
            async with client.post(CHAT, json=chat(max_tokens=3, script=_LATER)) as response:
                assert response.status == 200, (count, await response.text())
                answer = await response.json()
                assert answer["choices"][0]["message"]["content"] == answer_to("hi", 3)
    found.append("20 of 20 answered")


def test_doctor(front: Place, found: Words) -> None:
    """No silence of the defaults of proxies in a full run: nginx's and Traefik's are 60 s."""
    idle_s = 65 if FULL else 2
    arguments = ["--through", front.url, "--url", front.behind.gateway.url, "--key", front.behind.key]
    checks = [part for check in (*REMEDIES, "http2") for part in ("--only", check)]
    more = ["--ca-file", str(front.proxy.at.certificate), "--idle", str(idle_s), "--on", "way"]
    result = CliRunner().invoke(build(), ["doctor", "--json", *arguments, *more, *checks])
    states = {check["id"]: check for check in json.loads(result.stdout)["checks"]}
    wrong = {name: each["words"] for name, each in states.items() if each["state"] not in ("ok", "skipped")}
    assert wrong == {}
    assert {states[name]["state"] for name in REMEDIES} == {"ok"}, states
    found.append(f"all ok, {idle_s} s of silence")


async def test_tunnel_cut(front: Place, found: Words) -> None:
    """The proxy is killed and started again: an answer on its agent's tunnel goes on, whole."""
    count, received = 300, b""
    body = chat(stream=True, max_tokens=count, script={"tokens_per_s": 100})
    async with (
        aiohttp.ClientSession(front.behind.gateway.url, headers=front.headers) as client,
        client.post(CHAT, json=body) as response,
    ):
        assert response.status == 200
        async with asyncio.timeout(4 * _UNTIL_S):
            while received.count(b'"content":"') < 30:
                received += await response.content.readany()
            await asyncio.to_thread(front.proxy.kill)
            await asyncio.to_thread(front.proxy.start)
            received += await response.read()
    assert text_of(received) == answer_to("hi", count)
    assert received.endswith(b"data: [DONE]\n\n")
    found.append("resumed, no token lost")


def text_of(stream: bytes) -> str:
    """What the chunks of a streamed chat say."""
    events = [
        event.removeprefix(b"data: ") for event in stream.split(b"\n\n") if event.startswith(b"data: {")
    ]
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)
