"""A TCP proxy that is as slow and as faulty as the test wants the network to be.

In a test: ``async with FaultyProxy("127.0.0.1", port, Link(rate_bytes_per_s=1.25e6)) as proxy: ...``.
As a process: ``python -m tests.support.proxy --target 127.0.0.1:8080 --rate-mbit 10 --delay-ms 20``.
"""

from tests.support.proxy.link import Link, Pipe, Side
from tests.support.proxy.server import FaultyProxy

__all__ = ["FaultyProxy", "Link", "Pipe", "Side"]
