"""The form of a transcription, as OpenAI's SDKs send it. Pure but for the parser of forms."""

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictStr
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.parsing import EngineRequest

_FIELDS = 32


class TranscriptionRequest(EngineRequest):
    language: StrictStr | None = None
    prompt: Annotated[StrictStr, Field(max_length=4096)] | None = Field(default=None, repr=False)
    response_format: Literal["json", "text"] = Field(
        default="json", description="json or text: this engine gives no time stamps"
    )
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    stream: Annotated[Literal[False], BeforeValidator(lambda value: value not in (False, "false"))] = Field(
        default=False, description="false: this engine does not stream transcriptions"
    )


async def read_form(headers: Mapping[str, str], body: bytes) -> tuple[TranscriptionRequest, bytes]:
    """The request, and its file. Raises InvalidRequest."""
    if not headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidRequest("The body must be multipart/form-data.", code="invalid_value")

    async def pieces() -> AsyncIterator[bytes]:
        yield body
        yield b""

    parser = MultiPartParser(Headers(headers), pieces(), max_files=1, max_fields=_FIELDS)  # type: ignore[arg-type]
    parser.spool_max_size = len(body) + 1  # it is in memory already
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        raise InvalidRequest(f"The form cannot be read: {error}") from error
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise InvalidRequest("file must be a recording, sent as a file.", param="file")
        fields: dict[str, Any] = {name: value for name, value in form.items() if name != "file"}
        return TranscriptionRequest.read(fields), await file.read()
    finally:
        await form.close()
