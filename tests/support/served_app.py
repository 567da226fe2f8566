"""Serves an application of aiohttp's as a program of its own, as stand-ins for servers do."""

import asyncio
import sys

from aiohttp import web


async def serve_app(app: web.Application, *, handler_cancellation: bool = False) -> None:
    """Serve ``app`` at a free port of 127.0.0.1, say ``listening http://…``, and stay until the process ends.
    With ``handler_cancellation`` a client that hangs up cancels what is done for it."""
    runner = web.AppRunner(app, handler_cancellation=handler_cancellation)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    sys.stdout.write(f"listening http://{host}:{port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()
