"""``python -m tests.support.proxy``: prints ``listening HOST:PORT`` and carries bytes until told to stop."""

import argparse
import asyncio
import signal
import sys

from tests.support.proxy import FaultyProxy, Link


async def serve(arguments: argparse.Namespace) -> None:
    host, _, port = arguments.target.rpartition(":")
    rate = None if arguments.rate_mbit is None else arguments.rate_mbit * 1e6 / 8
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    link = Link(rate_bytes_per_s=rate, delay_s=arguments.delay_ms / 1000)
    async with FaultyProxy(host, int(port), link) as proxy:
        sys.stdout.write(f"listening 127.0.0.1:{proxy.port}\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="proxy", description=__doc__)
    parser.add_argument("--target", required=True, help="HOST:PORT")
    parser.add_argument("--rate-mbit", type=float, default=None, help="each way, in megabits a second")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
