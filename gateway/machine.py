"""What fails when the machine does, and who watches for it."""

import asyncio

import structlog

from gateway.descriptors import RESERVE, Descriptors
from gateway.metrics import Metrics
from shared.open_files import OPEN_FILES, raise_file_limit

_log = structlog.get_logger("gateway")


class Machine:
    """The guards of one gateway. Create it on the event loop that they guard."""

    def __init__(self, metrics: Metrics) -> None:
        loop = asyncio.get_running_loop()
        self.descriptors = Descriptors(loop, metrics)
        loop.set_exception_handler(self.descriptors.loop_failed)


def make_room(connections: int, agents: int) -> None:
    """Raise the limit of open files to what so many clients and agents need, and say so if it cannot be."""
    needed = connections + agents + RESERVE
    limit = raise_file_limit(max(needed, OPEN_FILES))
    if limit is not None and limit < needed:
        _log.warning("few_descriptors", limit=limit, connections=connections, agents=agents)
