"""The answer to a prompt that is over: the files it wrote, as its client wants them, at the client's pace."""

import asyncio
import base64
import mimetypes
import time
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import orjson

from agent.engines.backend import BackendFailed, BackendRequest, ResponseReceiver
from agent.engines.comfyui.requests import AnswerForm, AskedPrompt
from agent.engines.comfyui.results import FILES, OutputFile, PromptError, failure_of, output_files
from agent.engines.http.client.upload import NoBody
from agent.engines.http.engine_client import EngineClient
from shared.protocol.messages import Headers, RequestHead
from shared.protocol.progress import Progress

IN_JSON_BYTES = 64 * 1024 * 1024
"""Most bytes of files that are written into one answer as base64."""

HEAD_S = 30.0
_JSON = ("content-type", "application/json")
_EVENTS = ("content-type", "text/event-stream; charset=utf-8")
_PASSED = frozenset(("content-type", "content-length", "content-disposition", "last-modified"))


class AnswerFailed(Exception):
    """There is no answer but ``error``. Nothing of another has been sent."""

    def __init__(self, error: PromptError) -> None:
        super().__init__(error.message)
        self.error = error


class PromptAnswer:
    """Sends one answer to ``receiver``. ``output_bytes`` is the longest file that is passed on."""

    def __init__(self, client: EngineClient, receiver: ResponseReceiver, output_bytes: int) -> None:
        self._client = client
        self._receiver = receiver
        self._output_bytes = output_bytes
        self._call: BackendRequest | None = None
        self._wanted = asyncio.Event()
        """More of the answer is wanted."""
        self._wanted.set()

    def resume(self) -> None:
        self._wanted.set()
        if self._call is not None:
            self._call.resume()

    def let_go(self) -> None:
        if self._call is not None:
            self._call.let_go()

    async def send(self, asked: AskedPrompt, record: dict[str, Any], said: dict[str, Any]) -> None:
        """``record`` is of the history, ``said`` what the server answered to the prompt. Raises
        :class:`AnswerFailed`, the :class:`BackendError` that fits, and what the receiver raises."""
        if asked.form is AnswerForm.PROMPT:
            await self.send_json(200, said)
            return
        if (failure := failure_of(record)) is not None:
            raise AnswerFailed(failure)
        files = output_files(record, asked.outputs)
        if not files:
            raise AnswerFailed(PromptError(500, "The workflow wrote no files.", "no_output"))
        if asked.form is AnswerForm.FILES and len(files) == 1:
            await self._send_file(files[0])
        else:
            await self._send_all(asked, files, str(said["prompt_id"]))

    async def send_json(self, status: int, value: object) -> None:
        """An answer in one piece."""
        body = orjson.dumps(value)
        self._receiver.on_response(status, (_JSON, ("content-length", str(len(body)))))
        await self._write(body)

    async def _write(self, data: bytes) -> None:
        if data and not self._receiver.on_body(data):
            self._wanted.clear()
        await self._wanted.wait()

    # --- one file as it is

    async def _send_file(self, file: OutputFile) -> None:
        size_bytes = await self._size_of(file)
        if size_bytes > self._output_bytes:
            raise AnswerFailed(_too_large(f"{file.filename} has {size_bytes} bytes", self._output_bytes))

        def begin(headers: Headers) -> None:
            kept = tuple(field for field in headers if field[0] in _PASSED)
            self._receiver.on_response(200, kept)

        await self._read(file, begin, self._receiver.on_body)

    # --- several, or in JSON

    async def _send_all(self, asked: AskedPrompt, files: Sequence[OutputFile], prompt_id: str) -> None:
        if len(files) > FILES:
            raise AnswerFailed(_too_large(f"the workflow wrote more than {FILES} files", FILES))
        whole = sum([await self._size_of(file) for file in files])
        most = min(IN_JSON_BYTES, self._output_bytes)
        if whole > most:
            raise AnswerFailed(_too_large(f"its {len(files)} files have {whole} bytes", most))
        form = asked.form
        events = form in (AnswerForm.EVENTS, AnswerForm.IMAGE_EVENTS)
        self._receiver.on_response(200, (_EVENTS if events else _JSON,))
        if form is AnswerForm.IMAGE_EVENTS:
            for file in files:
                said = {"type": "image_generation.completed", "created_at": _made(file)["created"]}
                await self._write(b"event: image_generation.completed\ndata: ")
                await self._write_object(said | {"output_format": _format(file)}, "b64_json", file)
                await self._write(b"\n\n")
            return
        if events:
            await self._write(b"data: ")
        if form is AnswerForm.IMAGES:
            begins: dict[str, Any] = {**_made(files[0])}
            await self._write_list(begins, "data", "b64_json", [({}, file) for file in files])
        else:
            name = "" if asked.workflow is None else asked.workflow.name
            begins = {"id": prompt_id, "workflow": name}
            rows = [({"node": f.node, "filename": f.filename, "type": _media_type(f)}, f) for f in files]
            await self._write_list(begins, "outputs", "data", rows)
        if events:
            await self._write(b"\n\ndata: [DONE]\n\n")

    async def _write_list(
        self,
        begins: dict[str, Any],
        member: str,
        data: str,
        rows: Sequence[tuple[dict[str, Any], OutputFile]],
    ) -> None:
        """The object ``begins`` with ``member``, a list of objects with ``data`` in base64."""
        await self._write(orjson.dumps(begins)[:-1] + b',"%b":[' % member.encode())
        for place, (row, file) in enumerate(rows):
            if place:
                await self._write(b",")
            await self._write_object(row, data, file)
        await self._write(b"]}")

    async def _write_object(self, row: dict[str, Any], member: str, file: OutputFile) -> None:
        begins = orjson.dumps(row)[:-1]
        await self._write(begins + (b"," if row else b"") + b'"%b":"' % member.encode())
        rest = b""

        def encode(piece: bytes) -> bool:
            nonlocal rest
            piece = rest + piece
            whole = len(piece) - len(piece) % 3
            rest = piece[whole:]
            return not whole or self._receiver.on_body(base64.b64encode(piece[:whole]))

        await self._read(file, lambda headers: None, encode)
        await self._write(base64.b64encode(rest) + b'"}')

    # --- reading files

    async def _size_of(self, file: OutputFile) -> int:
        """In bytes; 0 where the server does not say."""
        reader = _Reader(lambda headers: None, lambda piece: True)
        call = self._client.request(RequestHead("", "HEAD", file.path, (), "", ""), NoBody(), reader)
        try:
            async with asyncio.timeout(HEAD_S):
                await reader.over
        except TimeoutError:
            raise BackendFailed("the engine fell silent when it was asked for a file") from None
        finally:
            call.let_go()
        if reader.error is not None:
            raise reader.error
        length = next((text for name, text in reader.headers if name == "content-length"), "0")
        return int(length) if length.isdecimal() else 0

    async def _read(
        self, file: OutputFile, on_head: Callable[[Headers], None], on_piece: Callable[[bytes], bool]
    ) -> None:
        """Read ``file``, pausing while ``on_piece`` says so."""
        await self._wanted.wait()
        left = self._output_bytes

        def take(piece: bytes) -> bool:
            nonlocal left
            left -= len(piece)
            if left < 0:
                raise BackendFailed(f"the file is longer than {self._output_bytes} bytes")
            return on_piece(piece)

        reader = _Reader(on_head, take)
        head = RequestHead("", "GET", file.path, (), "", "")
        self._call = self._client.request(head, NoBody(), reader)
        try:
            await reader.over
        finally:
            self._call.let_go()
            self._call = None
        if reader.error is not None:
            raise reader.error


class _Reader:
    """Reads a file from the engine."""

    tells_progress = False

    def __init__(self, on_head: Callable[[Headers], None], on_piece: Callable[[bytes], bool]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: Exception | None = None
        self.headers: Headers = ()
        self._on_head = on_head
        self.on_body = on_piece

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> None:
        if status != 200:
            raise BackendFailed(f"the engine answers {status} when asked for a file that it wrote")
        self.headers = headers
        self._on_head(headers)

    def on_progress(self, progress: Progress) -> None:
        pass

    def on_over(self, error: Exception | None) -> None:
        self.error = error
        if not self.over.done():
            self.over.set_result(None)


def _too_large(what: str, most: int) -> PromptError:
    message = f"The output is too large: {what}, and {most} are passed on at most."
    return PromptError(422, message, "output_too_large")


class _Made(TypedDict):
    """How OpenAI's answers with images begin; ``created`` is in seconds since 1970."""

    created: int
    output_format: str


def _made(file: OutputFile) -> _Made:
    return _Made(
        created=int(time.time()),
        output_format=_format(file),
    )


def _media_type(file: OutputFile) -> str:
    return mimetypes.guess_type(file.filename)[0] or "application/octet-stream"


def _format(file: OutputFile) -> str:
    return _media_type(file).rpartition("/")[2]
