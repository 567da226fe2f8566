"""While a request is worked on, its client may leave."""

import asyncio
from typing import Any

from gateway.api.exchange.inbound import Inbound
from gateway.api.exchange.reply import Reply
from gateway.api.server.answer_cycle import AnswerCycle
from gateway.domain.errors import ClientGone


class ClientWatch:
    """A block in the task that makes it. The server tells it that the client left; or a task of its own does,
    if this server does not tell, or if something of the request is still to come."""

    __slots__ = ("_cancelled_before", "_cycle", "_fired", "_inbound", "_owner", "_reply", "_watch")

    def __init__(
        self,
        inbound: Inbound,
        reply: Reply,
        cycle: AnswerCycle | None,
        owner: "asyncio.Task[Any] | None" = None,
    ) -> None:
        """``owner`` is the task that makes it, if that is known."""
        owner = owner or asyncio.current_task()
        assert owner is not None
        self._owner = owner
        self._inbound = inbound
        self._reply = reply
        self._cycle = cycle if inbound.complete else None
        self._cancelled_before = owner.cancelling()
        self._fired = False
        self._watch: asyncio.Task[None] | asyncio.Handle | None = None
        """Looks for the client's end, where the server does not tell of it."""

    def __enter__(self) -> None:
        if self._cycle is None:
            self._watch = asyncio.get_running_loop().create_task(self._until_gone())
        elif not self._cycle.when_gone(self._gone):
            self._watch = asyncio.get_running_loop().call_soon(self._gone)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        left = error is not None and isinstance(error, asyncio.CancelledError) and self._blames_client()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None  # its traceback refers to this object
        if self._cycle is not None:
            self._cycle.on_gone = None
        if left:
            raise ClientGone("The client disconnected.") from None

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Ends what the client hears while it waits, too."""
        try:
            self.__exit__(kind, error, traceback)
        finally:
            if self._reply.tells_waiting:
                await self._reply.end_waiting()

    async def _until_gone(self) -> None:
        """Reads what is left of the request beside the answer, and finds its end."""
        await self._inbound.until_gone()
        self._gone()

    def _gone(self) -> None:
        # A server also says so once the answer is complete; then nobody is cancelled.
        if not self._reply.ended:
            self._fired = True
            self._owner.cancel()

    def _blames_client(self) -> bool:
        """Whether a CancelledError was this watch's doing alone, as ``asyncio.timeout`` decides it."""
        return self._fired and self._owner.uncancel() <= self._cancelled_before
