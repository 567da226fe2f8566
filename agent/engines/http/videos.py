"""Videos of engines that make them by themselves: ``POST /v1/videos`` is answered at once with an id, which
is asked for until the video is there (OpenAI's Videos API, as vLLM-omni and SGLang have it).

For the gateway it is one answer that takes its time (:mod:`shared.protocol.followed`): so its slot is held as
long as the engine works, and a request that is given up is taken back from the engine.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import orjson
import structlog

from agent.engines.backend import (
    BackendBody,
    BackendError,
    BackendFailed,
    BackendUnreachable,
    ResponseReceiver,
)
from agent.engines.http.client.upload import NoBody
from agent.engines.http.engine_client import EngineClient, SmallResponse
from shared.protocol.followed import FOLLOWED, FollowedAnswer, answer_line, progress_line
from shared.protocol.messages import Headers, RequestHead
from shared.protocol.progress import Progress, progress
from shared.speedups import OutPath

log = structlog.get_logger("agent.engine")

PATH = "/v1/videos"
CREATED_BYTES = 256 * 1024
"""Longest answer that can be the object of a video which is being made."""
ID_CHARS = 256
LOOK_S = 1.0
"""Between two looks at how far the engine is; it has no way to tell by itself."""
TOLD_S = 15.0
"""How far it is is told again after so long, for the gateway to see that it goes on."""
SILENT_S = 120.0
"""So long an engine may answer no look, or with an error, while it makes a video."""

_WORKING = frozenset(("queued", "in_progress"))
_ENDED = frozenset(("completed", "failed"))
_TAKEN = frozenset((200, 201, 202))
_FACTS = ("seconds", "size")

OnEnd = Callable[[Exception | None], None]


def is_followed(head: RequestHead) -> bool:
    """Whether whoever sends the request takes a followed answer to it."""
    if not head.path.startswith(PATH):  # nearly always
        return False
    if head.path.partition("?")[0] != PATH or head.method.upper() != "POST":
        return False
    return any(name.lower() == "accept" and FOLLOWED in value for name, value in head.headers)


class VideoRemovals:
    """Takes videos from their engine that nobody wants there any more, beside everything else."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()

    def remove(self, video_id: str) -> None:
        """Begin to. An engine that cannot keeps it."""
        task = asyncio.get_running_loop().create_task(self._remove(video_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """What is under way is given up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _remove(self, video_id: str) -> None:
        try:
            await self._client.ask(f"{PATH}/{quote(video_id, safe='')}", method="DELETE")
        except BackendError as error:
            log.info("video not removed", reason=error.reason)


class FollowedVideo:
    """One request for a video. Implements :class:`agent.engines.backend.BackendRequest`, and is told of the
    engine's first answer as a :class:`agent.engines.backend.ResponseReceiver`.

    An answer that is no video in the making goes on as it is: the bytes of an engine that answers when it is
    done, or a refusal.
    """

    def __init__(
        self,
        client: EngineClient,
        removals: VideoRemovals,
        receiver: ResponseReceiver,
        on_end: OnEnd,
    ) -> None:
        """``on_end`` is as with :class:`agent.engines.http.client.call.EngineCall`."""
        self._client = client
        self._removals = removals
        self._receiver = receiver
        self.on_progress, self.tells_progress = receiver.on_progress, receiver.tells_progress
        self._on_end = on_end
        self._call: Any = None
        """The engine's answer that is being read."""
        self._task: asyncio.Task[None] | None = None
        """Looks at the engine once it has said the video's id."""
        self._status = 0
        self._headers: Headers = ()
        self._created: bytearray | None = None
        """Of an answer that may be the object of a video."""
        self._video_id = ""
        self._told: Progress | None = None
        self._wanted = asyncio.Event()
        """More of the answer is wanted."""
        self._wanted.set()
        self._over = False

    def begin(
        self, head: RequestHead, body: BackendBody, after: Callable[[], Awaitable[object]] | None
    ) -> "FollowedVideo":
        """Send the request. Raises :class:`agent.engines.backend.RequestUnfit`."""
        call = self._client.request(head, body, self, None, after)
        if self._task is None and not self._over:
            self._call = call
        return self

    def resume(self) -> None:
        self._wanted.set()
        if self._call is not None:
            self._call.resume()

    def let_go(self) -> None:
        if self._over:
            return
        if self._call is not None:
            self._call.let_go()
        if self._task is not None:
            self._task.cancel()
        self._end(None)

    # --- the engine's first answer

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> OutPath | None:
        self._status, self._headers = status, headers
        if status in _TAKEN and any(name == "content-type" and "json" in value for name, value in headers):
            self._created = bytearray()
            return None
        return self._receiver.on_response(status, headers, whole=whole)

    def on_body(self, piece: bytes) -> bool:
        if self._created is None:
            return self._receiver.on_body(piece)
        self._created += piece
        if len(self._created) > CREATED_BYTES:
            return self._pass_on()
        return True

    def on_over(self, error: Exception | None) -> None:
        self._call = None
        if error is not None or self._created is None:
            self._finish(error)
            return
        video = _video(SmallResponse(self._status, bytes(self._created)).json())
        if video is None:
            try:
                self._pass_on()
            except Exception as raised:
                self._finish(raised)
            else:
                self._finish(None)
            return
        self._video_id = video["id"]
        self._task = asyncio.get_running_loop().create_task(self._follow(video))

    def _pass_on(self) -> bool:
        """It is no object of a video: what came of it goes on."""
        created, self._created = bytes(self._created or b""), None
        self._receiver.on_response(self._status, self._headers)
        return self._receiver.on_body(created) if created else True

    # --- a video in the making

    async def _follow(self, video: dict[str, Any]) -> None:
        try:
            self._receiver.on_response(200, (("content-type", FOLLOWED),))
            video = await self._ended(video)
            await self._wanted.wait()
            if video["status"] == "failed":
                self._say(_failure(video))
            else:
                await self._content(video)
        except Exception as error:
            self._finish(error)
        else:
            self._finish(None)

    async def _ended(self, video: dict[str, Any]) -> dict[str, Any]:
        """The video's object once the engine has ended it. Raises BackendError."""
        loop = asyncio.get_running_loop()
        heard_s = told_s = loop.time()
        while video["status"] not in _ENDED:
            now = _progress(video)
            if now != self._told or loop.time() - told_s >= TOLD_S:
                self._tell(now)
                told_s = loop.time()
            await asyncio.sleep(LOOK_S)
            try:
                found = await self._look()
            except BackendUnreachable as error:  # whatever it had made is gone with it
                raise BackendFailed(f"the engine went away while it made the video: {error.reason}") from None
            except BackendError:
                found = None
            if found is not None:
                video, heard_s = found, loop.time()
            elif loop.time() - heard_s > SILENT_S:
                raise BackendFailed(f"the engine has said nothing of the video for {SILENT_S:g} s")
        return video

    async def _look(self) -> dict[str, Any] | None:
        """The video as it is; None: the engine did not say. Raises BackendError."""
        answer = await self._client.ask(self._path)
        if answer.status in (404, 410):
            raise BackendUnreachable("the engine does not know the video any more")
        return _video(answer.json()) if answer.status == 200 else None

    @property
    def _path(self) -> str:
        return f"{PATH}/{quote(self._video_id, safe='')}"

    def _tell(self, now: Progress) -> None:
        """A gateway that did not agree on PROGRESS reads it in the body."""
        if self.tells_progress:
            self.on_progress(now)
        elif self._wanted.is_set():
            self._say(progress_line(now.fraction or 0.0))
        else:
            return
        self._told = now

    def _say(self, data: bytes) -> None:
        if not self._receiver.on_body(data):
            self._wanted.clear()

    async def _content(self, video: dict[str, Any]) -> None:
        """Pass the video's bytes on. Raises BackendError, and what the receiver raises."""
        facts = {name: str(video[name]) for name in _FACTS if isinstance(video.get(name), str | int)}
        content = _Content(self._receiver, facts)
        head = RequestHead("", "GET", f"{self._path}/content", (), "", "")
        self._call = self._client.request(head, NoBody(), content)
        try:
            await content.over
        finally:
            self._call = None
        if content.error is not None:
            raise content.error

    # --- the end

    def _finish(self, error: Exception | None) -> None:
        if not self._over:
            self._end(error)
            self._receiver.on_over(error)

    def _end(self, error: Exception | None) -> None:
        self._over = True
        if self._video_id:  # whoever asked has it, or does not want it
            self._removals.remove(self._video_id)
        self._on_end(error)


class _Content:
    """The bytes of a video on their way. Implements :class:`agent.engines.backend.ResponseReceiver`."""

    def __init__(self, receiver: ResponseReceiver, facts: dict[str, str]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: Exception | None = None
        self._receiver = receiver
        self._facts = facts
        self.on_body = receiver.on_body
        self.on_progress, self.tells_progress = receiver.on_progress, receiver.tells_progress

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> None:
        if status != 200:
            raise BackendFailed(f"the engine made the video and answers {status} when asked for its bytes")
        self._receiver.on_body(answer_line(FollowedAnswer(200, headers, self._facts)))

    def on_over(self, error: Exception | None) -> None:
        self.error = error
        if not self.over.done():
            self.over.set_result(None)


def _video(value: Any) -> dict[str, Any] | None:
    """The object of a video with an id and a status that is known; None: it is none."""
    if not isinstance(value, dict):
        return None
    video_id, status = value.get("id"), value.get("status")
    known = isinstance(status, str) and (status in _WORKING or status in _ENDED)
    return value if known and isinstance(video_id, str) and 0 < len(video_id) <= ID_CHARS else None


def _failure(video: dict[str, Any]) -> bytes:
    """The answer for a video that its engine failed on: refused where its code is a status that says so, else
    an error after which another attempt may do."""
    said = video.get("error")
    error: dict[str, Any] = said if isinstance(said, dict) else {}
    message, code = error.get("message"), error.get("code")
    number = int(str(code)) if str(code).isdecimal() else 0
    told = {
        "message": message if isinstance(message, str) else "The engine failed on the video.",
        "type": "engine_error",
        "code": code if isinstance(code, str) and not number else "video_failed",
    }
    head = FollowedAnswer(number if 400 <= number < 500 else 500, (("content-type", "application/json"),))
    return answer_line(head) + orjson.dumps({"error": told})


def _progress(video: dict[str, Any]) -> Progress:
    """Engines write it in percent."""
    value = video.get("progress")
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    return progress(number / 100.0, "queued" if video["status"] == "queued" else "")
