"""A receiver of webhooks on loopback, and a name server that says what the test wants."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohappyeyeballs import AddrInfoType

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@dataclass
class Received:
    """One request."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Answers each connection with the next of ``answers``; the last one stays."""

    port: int = 0
    answers: list[bytes] = field(default_factory=lambda: [OK])
    received: list[Received] = field(default_factory=list)
    silent: bool = False
    """It answers nothing, and holds connections."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
            writer.close()
            await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = head.strip().split("\r\n")
        headers = dict(each.split(": ", 1) for each in lines)
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.append(Received(line, headers, body))
        if self.silent:
            await reader.read()
        else:
            writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
            await writer.drain()


@asynccontextmanager
async def receiving(*answers: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(answers=list(answers) or [OK])
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await receiver.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Names:
    """A name server: what it says of each host, one answer after the other; the last one stays."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(each) for name, each in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[AddrInfoType]:
        self.asked.append(host)
        left = self._answers.get(host)
        if left is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        addresses = left.pop(0) if len(left) > 1 else left[0]
        return [_info(each, port) for each in addresses]


def _info(address: str, port: int) -> AddrInfoType:
    stream, tcp = socket.SOCK_STREAM, socket.IPPROTO_TCP
    if ":" in address:
        return (socket.AF_INET6, stream, tcp, "", (address, port, 0, 0))
    return (socket.AF_INET, stream, tcp, "", (address, port))
