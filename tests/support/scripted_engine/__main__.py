"""``python -m tests.support.scripted_engine``: prints ``listening URL``, serves until told to stop."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from tests.support.scripted_engine import Habit, Script, ScriptedEngine


async def serve(arguments: argparse.Namespace) -> None:
    script = Script(
        tokens=arguments.tokens, tokens_per_s=arguments.tokens_per_s, pad_bytes=arguments.pad_bytes
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await asyncio.sleep(arguments.load_s)
    async with ScriptedEngine(
        models=tuple(arguments.model or ["scripted"]),
        default=script,
        port=arguments.port,
        unix_socket=arguments.unix,
        api_key=arguments.api_key,
        continues=not arguments.never_continues,
        repeats_head=arguments.repeats_head,
        habits=map(Habit, arguments.habit or ()),
    ) as engine:
        where = engine.url if arguments.unix is None else f"unix:{arguments.unix}"
        sys.stdout.write(f"listening {where}\ncontrol http://127.0.0.1:{engine.control_port}\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripted_engine", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--unix", type=Path, default=None, help="listen on this Unix socket instead")
    parser.add_argument("--model", action="append", help="a model to serve; may be repeated")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--tokens-per-s", type=float, default=0.0)
    parser.add_argument("--pad-bytes", type=int, default=0)
    parser.add_argument("--api-key", default=None)
    parser.add_argument("--never-continues", action="store_true", help="take every last message as asked")
    parser.add_argument("--repeats-head", action="store_true", help="say what it goes on from again first")
    parser.add_argument("--habit", action="append", choices=[*Habit], help="may be repeated")
    parser.add_argument("--load-s", type=float, default=0.0, help="so long it takes before it listens")
    arguments = parser.parse_args()
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(arguments))
    else:
        uvloop.run(serve(arguments))


if __name__ == "__main__":
    main()
