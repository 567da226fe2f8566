"""Every attack of the table against a gateway that really runs, and what its log says of them."""

import asyncio
import re
from collections.abc import Iterator

import pytest

from tests.support.attacks import ATTACKS, KEY, Attack
from tests.support.processes import Gateway, House, fetch

_STATUS_LINE = re.compile(rb"HTTP/1\.1 \d{3} ")
_PATIENCE_S = 60.0
"""Longer than a stranger has at /tunnel."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("edge")) as built:
        yield built


@pytest.fixture(scope="module")
def gateway(house: House) -> Gateway:
    return house.gateway()


@pytest.fixture(scope="module")
def key(gateway: Gateway) -> str:
    return gateway.key("edge")


async def answers(port: int, sent: bytes, closes: bool) -> bytes:
    """All that comes back; until the server closes, or until the first answer is there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = bytearray()
    try:
        writer.write(sent)
        if b"upgrade: websocket" in sent:
            writer.write_eof()  # else the server gives us time to answer its closing frame
        async with asyncio.timeout(_PATIENCE_S):
            while piece := await reader.read(65_536):
                received += piece
                if not closes and b"\r\n\r\n" in received:
                    break
    except (ConnectionResetError, BrokenPipeError):
        pass  # closed with bytes of ours unread
    finally:
        writer.transport.abort()
    return bytes(received)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.group}: {attack.name}")
async def test_an_attack_has_the_result_that_is_promised(gateway: Gateway, key: str, attack: Attack) -> None:
    answer = await answers(gateway.port, attack.sent.replace(KEY, key.encode()), attack.closes)
    assert answer.startswith(b"HTTP/1.1 %d " % attack.status), answer[:300]
    assert len(_STATUS_LINE.findall(answer)) == 1, "something was smuggled"
    assert b"access-control-" not in answer
    assert key.encode() not in answer


def test_afterwards_the_gateway_is_well_and_its_log_holds_no_secret(gateway: Gateway, key: str) -> None:
    token = gateway.token()
    for path in (f"/v1/models/{key}", f"/v1/models/{token}", f"/engines/m/x?key={key}"):
        with pytest.raises(OSError, match=r"404|400|503"):
            fetch(f"{gateway.url}{path}", key=key)
    with pytest.raises(OSError, match="401"):
        fetch(f"{gateway.url}/v1/models", key=token)
    assert gateway.serving()
    log = gateway.child.log.read_text()
    assert "request" in log
    assert "Traceback" not in log
    assert "request_failed" not in log
    for secret in (key, token):
        assert secret not in log
