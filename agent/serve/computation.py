"""One item of a model, from the queue to its last output."""

import asyncio
from collections import deque

from agent.serve.device import DeviceRunner
from agent.serve.messages import ModelFault
from agent.serve.parcels import Parcel


class Computation:
    """One item, from the queue to its last output. Belongs to one reader."""

    __slots__ = (
        "_outputs",
        "_waiter",
        "begun",
        "crashes",
        "device",
        "item",
        "length",
        "number",
        "over",
        "streamed",
        "tag",
    )

    def __init__(self, number: int, item: Parcel, length: float | None, tag: str) -> None:
        self.number = number
        self.item = item
        self.length = length
        self.tag = tag
        """What progress is told by: the request's id."""
        self.device: DeviceRunner | None = None
        """Where it is computed."""
        self.crashes = 0
        """How many processes ended while they computed it."""
        self.begun = False
        """An output has come, so that it is not computed again."""
        self.streamed = False
        self.over = False
        """Nothing more will come."""
        self._outputs: deque[Parcel | ModelFault | None] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: Parcel | ModelFault | None) -> None:
        """Its next output; None at the end of a stream."""
        self._outputs.append(output)
        self.over = self.over or not isinstance(output, Parcel)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def unread(self) -> int:
        return len(self._outputs)

    async def next(self) -> Parcel | ModelFault | None:
        while not self._outputs:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._outputs.popleft()

    def parcels(self) -> list[Parcel | ModelFault | None]:
        """All that it still holds, to be removed."""
        return [self.item, *self._outputs]
