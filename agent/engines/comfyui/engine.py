"""Runs prompts at one ComfyUI server: no more at a time than there are slots, each watched until it is over.

What became of a prompt is read from the history. The socket only tells that it is time to look, and how far
the prompt is, so a prompt whose socket is stuck ends all the same, a little later.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import structlog

from agent.engines.backend import BackendError, BackendFailed, BackendUnreachable
from agent.engines.comfyui.progress import PromptProgress, read_preview
from agent.engines.comfyui.server import ComfyUIServer, QueuePlace
from agent.engines.comfyui.socket import EventSocket
from shared.protocol.progress import Preview, Progress, progress

log = structlog.get_logger("agent.engine")

LOOK_S = 2.0
"""A prompt that nothing is heard of is looked after so often."""
SOON_S = (0.02, 0.05, 0.1, 0.2, 0.5)
"""The history has a prompt a moment after the socket says that it is over."""
MISSES = 2
SILENT_S = 120.0
"""So long a server may leave questions unanswered while it works on a prompt."""
READY_S = 2.0
"""A prompt waits so long for the socket."""
CANCEL_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Between looks at whether a cancelled prompt is gone."""

Shrink = Callable[[Preview, Callable[[Preview], None]], None]
_ENDS = frozenset(("execution_success", "execution_error", "execution_interrupted"))


class PromptFollower:
    """What is heard of one prompt. Implements :class:`agent.engines.comfyui.socket.PromptListener`."""

    def __init__(self, prompt: Mapping[str, Any], on_progress: Callable[[Progress], None]) -> None:
        self._progress = PromptProgress(prompt)
        self._on_progress = on_progress
        self._told = progress(0.0)
        self.on_message: Callable[[str | bytes], None] = lambda message: None
        """Given every message of the prompt."""
        self.shrink: Shrink = lambda preview, done: done(preview)
        """Makes a preview small enough, if need be."""
        self.began = False
        self.ended = asyncio.Event()
        self.heard_s = float("-inf")

    def on_event(self, kind: str, data: Mapping[str, Any], message: str) -> None:
        self.heard_s, self.began = asyncio.get_running_loop().time(), True
        self.on_message(message)
        if (told := self._progress.feed(kind, data)) is not None:
            self._told = told
            self._on_progress(told)
        if kind in _ENDS or (kind == "executing" and data.get("node") is None):
            self.ended.set()

    def on_preview(self, message: bytes) -> None:
        self.heard_s = asyncio.get_running_loop().time()
        self.on_message(message)
        if (preview := read_preview(message)) is not None:
            self.shrink(preview, self._show)

    def waits(self, ahead: int) -> None:
        """It is in the server's queue behind prompts of others."""
        self._on_progress(progress(0.0, f"{ahead} prompts of others are before it at the engine"))

    def _show(self, preview: Preview) -> None:
        self._on_progress(progress(self._told.fraction, self._told.text, preview))


class PromptEngine:
    """One server. Belongs to one event loop."""

    def __init__(self, server: ComfyUIServer, socket: EventSocket, slots: int, name: str) -> None:
        self.server = server
        self.socket = socket
        self.name = name
        self._permits = asyncio.Semaphore(slots)
        self._withdrawals: set[asyncio.Task[None]] = set()
        self.ours = 0
        """Prompts of ours that the server has, those among them that are being cancelled."""

    @property
    def withdrawing(self) -> int:
        """Cancelled prompts that the server still has."""
        return len(self._withdrawals)

    async def close(self) -> None:
        """Those that are being cancelled are waited for, but not long."""
        if self._withdrawals:
            await asyncio.wait(self._withdrawals, timeout=LOOK_S)
        for task in self._withdrawals:
            task.cancel()
        await asyncio.gather(*self._withdrawals, return_exceptions=True)
        await self.socket.close()

    async def run(
        self, prompt_id: str, follower: PromptFollower, submit: Callable[[], Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Have a prompt run that ``submit`` sends: the server's answer to it, and its record in the history.

        When this is cancelled, the prompt is cancelled at the server, and its slot is given to the next one
        only once the server has it no more. Raises what ``submit`` raises, and :class:`BackendError`.
        """
        await self._permits.acquire()
        self.ours += 1
        sending: asyncio.Task[dict[str, Any]] | None = None
        over = False
        try:
            await self.socket.ready(READY_S)
            self.socket.listen(prompt_id, follower)
            sending = asyncio.ensure_future(submit())
            said = await asyncio.shield(sending)
            if said["prompt_id"] != prompt_id:  # a server that gives ids of its own
                self.socket.leave(prompt_id)
                prompt_id = said["prompt_id"]
                self.socket.listen(prompt_id, follower)
            record = await self._ended(prompt_id, follower)
            over = True
            return said, record
        finally:
            self.socket.leave(prompt_id)
            if over or sending is None or (sending.done() and sending.exception() is not None):
                self._release()
            else:
                self._withdraw(prompt_id, sending)

    def _release(self) -> None:
        self.ours -= 1
        self._permits.release()

    def _withdraw(self, prompt_id: str, sending: asyncio.Task[dict[str, Any]]) -> None:
        task = asyncio.create_task(self._withdrawn(prompt_id, sending), name=f"cancel {prompt_id}")
        self._withdrawals.add(task)
        task.add_done_callback(self._withdrawals.discard)

    async def _withdrawn(self, prompt_id: str, sending: asyncio.Task[dict[str, Any]]) -> None:
        """Cancel the prompt; returns when the server has it no more, or is gone itself."""
        try:
            await asyncio.wait({sending})
            if sending.exception() is not None:
                return
            prompt_id = sending.result()["prompt_id"]
            looks = 0
            while not await self._cancelled(prompt_id):
                await asyncio.sleep(CANCEL_S[min(looks, len(CANCEL_S) - 1)])
                looks += 1
        finally:
            self._release()

    async def _cancelled(self, prompt_id: str) -> bool:
        try:
            await self.server.cancel(prompt_id)
            return await self.server.place(prompt_id) is None
        except BackendUnreachable:
            return True
        except BackendError as error:
            log.info("prompt not cancelled yet", engine=self.name, reason=error.reason)
            return False

    async def _ended(self, prompt_id: str, follower: PromptFollower) -> dict[str, Any]:
        """The record of the prompt once it is over. Raises :class:`BackendError`."""
        watch = _Watch(self.server, self.socket, prompt_id, follower)
        looks = 0
        while True:
            if follower.ended.is_set() or watch.missing:
                await asyncio.sleep(SOON_S[min(looks, len(SOON_S) - 1)])
                looks += 1
            else:
                await _within(LOOK_S, follower.ended)
                looks = 0
                if follower.ended.is_set() or watch.is_told:
                    continue
            if (record := await watch.look()) is not None:
                return record


class _Watch:
    """Looks at how far a prompt is."""

    def __init__(
        self, server: ComfyUIServer, socket: EventSocket, prompt_id: str, follower: PromptFollower
    ) -> None:
        self._server = server
        self._socket = socket
        self._prompt_id = prompt_id
        self._follower = follower
        self._clock = asyncio.get_running_loop().time
        self._answered_s = self._clock()
        self.missing = 0
        """Looks in a row at which the server knew nothing of the prompt. It may have ended in between."""

    @property
    def is_told(self) -> bool:
        """The socket told of the prompt just now."""
        return self._clock() - self._follower.heard_s < LOOK_S

    async def look(self) -> dict[str, Any] | None:
        """The record, if the prompt is over. Raises :class:`BackendError`."""
        try:
            record = await self._server.record(self._prompt_id)
            place = None if record is not None else await self._server.place(self._prompt_id)
        except BackendUnreachable as error:
            raise BackendFailed(f"the engine went away while it worked: {error.reason}") from None
        except BackendError as error:
            if self._clock() - self._answered_s > SILENT_S:
                raise BackendFailed(f"no answer for {SILENT_S:g} s: {error.reason}") from None
            return None
        self._answered_s = self._clock()
        if record is not None:
            if not self._follower.ended.is_set():
                self._socket.distrust()
            return record
        self.missing = self.missing + 1 if place is None else 0
        if self.missing > MISSES:
            raise BackendFailed("the engine does not know the prompt any more: it was deleted, or lost")
        if place is not None:
            self._note(place)
        return None

    def _note(self, place: QueuePlace) -> None:
        if place.running and not self._follower.began:
            self._socket.distrust()
        elif place.ahead:
            self._follower.waits(place.ahead)


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Waits for ``event``, but no longer than ``seconds``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
