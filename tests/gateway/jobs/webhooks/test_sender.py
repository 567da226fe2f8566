"""One attempt: to the address that was checked and to no other, and what its answers mean."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path

import pytest
import uvloop

from gateway.domain.webhook_addresses import WebhookRules
from gateway.domain.webhooks import AttemptResult
from gateway.jobs.webhooks import sender as module
from gateway.jobs.webhooks.guard import WebhookGuard
from gateway.jobs.webhooks.sender import WebhookSender
from tests.gateway.jobs.webhooks.receiver import OK, Names, receiving
from tests.support.leaks import Snapshot, assert_nothing_leaked
from tests.support.tls import make_certificate

TURNS = 24
"""Of the loop, within which a connection is there, but for what has to come back from the receiver."""

LOOPBACK = WebhookRules((ip_network("127.0.0.0/8"),))
HEADERS = {"webhook-id": "evt_1"}


def sender(names: Names | None = None, ca_file: Path | None = None) -> WebhookSender:
    """Which may send to loopback."""
    here = [["127.0.0.1"]]
    names = names or Names(hook_test=here, gateway_test=here, other_test=here)
    return WebhookSender(WebhookGuard(LOOPBACK, names), ca_file)


async def test_the_event_is_posted_to_the_named_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with receiving() as receiver:
        result = await sender().send(f"http://hook.test:{receiver.port}/in?a=b", HEADERS, b'{"x":1}')
    assert result == AttemptResult(200)
    (got,) = receiver.received
    assert (got.line, got.body) == ("POST /in?a=b HTTP/1.1", b'{"x":1}')
    assert got.headers["host"] == f"hook.test:{receiver.port}"
    assert got.headers["webhook-id"] == "evt_1"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["user-agent"].startswith("trunkline/")
    assert "authorization" not in got.headers


async def test_a_name_that_changes_its_address_after_the_check_is_refused() -> None:
    names = Names(hook_test=[["8.8.8.8"], ["127.0.0.1"]])
    guard = WebhookGuard(WebhookRules(), names)
    async with receiving() as receiver:
        url = f"http://hook.test:{receiver.port}/"
        await guard.check(url)
        result = await WebhookSender(guard).send(url, HEADERS, b"{}")
    assert result.error is not None
    assert "not public (loopback)" in result.error
    assert receiver.received == []


async def test_the_name_is_looked_up_once_and_its_answer_is_what_is_connected_to() -> None:
    names = Names(hook_test=[["127.0.0.1"], ["127.0.0.2"]])
    async with receiving() as receiver:
        result = await sender(names).send(f"http://hook.test:{receiver.port}/", HEADERS, b"{}")
    assert (result.status, names.asked) == (200, ["hook.test"])


async def test_another_address_is_tried_where_the_first_is_closed() -> None:
    async with receiving() as receiver:
        names = Names(hook_test=[["127.0.0.3", "127.0.0.1"]])
        result = await sender(names).send(f"http://hook.test:{receiver.port}/", HEADERS, b"{}")
    assert result.status == 200


async def test_tls_is_verified_with_the_name_and_not_the_address(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with receiving(tls=context) as receiver:
        trusting, wary = sender(ca_file=certificate), sender()
        right = await trusting.send(f"https://gateway.test:{receiver.port}/", HEADERS, b"{}")
        wrong = await trusting.send(f"https://other.test:{receiver.port}/", HEADERS, b"{}")
        unknown = await wary.send(f"https://gateway.test:{receiver.port}/", HEADERS, b"{}")
    assert right == AttemptResult(200)
    for refused in (wrong, unknown):
        assert refused.status is None
        assert refused.error is not None
        assert "certificate" in refused.error
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", AttemptResult(204)),
        (b"HTTP/1.1 503 X\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n", AttemptResult(503, "7")),
        (b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n", AttemptResult(410)),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", AttemptResult(200)),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, AttemptResult(200)),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + b"x" * 100_000, AttemptResult(200)),
        (b"", AttemptResult(error="it closed the connection without an answer")),
        (b"SSH-2.0-OpenSSH_9\r\n", AttemptResult(error="its answer is no HTTP")),
        (
            b"HTTP/1.1 200 OK\r\nx: " + b"y" * 50_000 + b"\r\n\r\n",
            AttemptResult(error="its answer cannot be used: its head is longer than 32768 bytes"),
        ),
    ],
)
async def test_answers(answer: bytes, expected: AttemptResult) -> None:
    async with receiving(answer) as receiver:
        assert await sender().send(f"http://hook.test:{receiver.port}/", HEADERS, b"{}") == expected


async def test_redirects_are_not_followed() -> None:
    async with receiving() as aim:
        there = f"http://127.0.0.1:{aim.port}/".encode()
        moved = b"HTTP/1.1 307 Moved\r\nlocation: " + there + b"\r\ncontent-length: 0\r\n\r\n"
        async with receiving(moved) as receiver:
            result = await sender().send(f"http://hook.test:{receiver.port}/", HEADERS, b"{}")
    assert (result.status, aim.received) == (307, [])


async def test_a_silent_receiver_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPT_S", 0.2)
    async with receiving() as receiver:
        receiver.silent = True
        result = await sender().send(f"http://hook.test:{receiver.port}/", HEADERS, b"{}")
    assert result == AttemptResult(error="it did not answer within 0.2 s")


async def test_what_cannot_be_reached_is_a_result_and_no_exception() -> None:
    async with receiving() as receiver:
        port = receiver.port
    for url in (f"http://hook.test:{port}/", "http://nowhere.test/", "http://u@hook.test/", "nonsense"):
        result = await sender().send(url, HEADERS, b"{}")
        assert result.status is None
        assert result.error


async def _send_and_give_up(directory: Path, *, tls: bool) -> None:
    troubles: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    certificate, key = make_certificate(directory)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with receiving(tls=context if tls else None) as receiver:
        url = f"http{'s' if tls else ''}://gateway.test:{receiver.port}/"
        sending = sender(ca_file=certificate)
        await sending.send(url, HEADERS, b"{}")
        before = Snapshot.take()
        for turns in (*range(TURNS), *range(TURNS)):
            given_up = asyncio.create_task(sending.send(url, HEADERS, b"{}"))
            for _ in range(turns):
                await asyncio.sleep(0)
            given_up.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await given_up
            assert await sending.send(url, HEADERS, b"{}") == AttemptResult(200)
        await assert_nothing_leaked(before)
    assert not [each for each in troubles if "incoming" not in str(each)]


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_attempt_that_is_given_up_takes_no_other_s_descriptor(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], tls: bool
) -> None:
    """A socket that was closed under its transport left that its number, which the next connection got."""
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_send_and_give_up(tmp_path, tls=tls))
