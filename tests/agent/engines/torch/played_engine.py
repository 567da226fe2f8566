"""A program that plays the engine process: ``python played_engine.py PLAY SOCKET``. Standard library only.

An empty SOCKET means a TCP port, where it wants the key of its environment.

It answers ``/v1/models`` as the engine does, and everything else with the beginning of an answer that never
ends.
"""

import asyncio
import json
import os
import signal
import sys

MODEL = {"id": "played", "object": "model", "owned_by": "trunkline", "slots": 3, "routes": ["completions"]}
READY = {
    "model": "played",
    "routes": ["completions"],
    "slots": 3,
    "queue": 3,
    "context_tokens": 64,
    "device": "cpu",
    "created": 0,
    "port": None,
}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while request := await reader.readline():
        head = b""
        while line := (await reader.readline()).strip():
            head += line.lower() + b"\n"
        key = os.environ.get("TRUNKLINE_ENGINE_KEY")
        if key is not None and f"authorization: bearer {key}\n".lower().encode() not in head:
            writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")
        elif b"/v1/models" in request:
            body = json.dumps({"object": "list", "data": [MODEL]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        elif request.startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nbegun")
            await writer.drain()
            await asyncio.sleep(3600)


async def serve(path: str) -> None:
    say(json.dumps({"loading": {"step": "importing", "progress": None}}))
    say(json.dumps({"loading": {"step": "reading", "progress": 0.5}}))
    if path:
        server = await asyncio.start_unix_server(answer, path)
        say(json.dumps({"ready": READY}))
    else:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        say(json.dumps({"ready": READY | {"port": server.sockets[0].getsockname()[1]}}))
    await server.serve_forever()


def main(play: str, path: str) -> None:
    sys.stderr.write("INFO:engine:loading\nsome library talks\n")
    if play == "unusable":
        sys.stderr.write("ERROR:engine:no such model\n")
        sys.exit(3)
    if play == "crash":
        sys.stderr.write("Traceback (most recent call last):\nValueError: broken\n")
        sys.exit(1)
    if play == "babble":
        say("hello there")
    if play == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stderr.flush()
    asyncio.run(serve(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
