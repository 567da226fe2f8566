"""The Files API as OpenAI's SDK uses it, and what it refuses."""

import io
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import orjson
import pytest
from openai import AsyncOpenAI

from gateway.domain.request import Principal
from gateway.domain.scopes import limited
from gateway.jobs.files import FileBounds, FileService
from gateway.jobs.objects import ObjectOpener
from gateway.storage import Store
from gateway.storage.errors import ObjectStorageError
from gateway.storage.objects import ObjectStore
from tests.gateway.api.support import KEY, FakeKeys, Surface, error_in

MIB = 1024 * 1024


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[FileService]:
    with Store.open(tmp_path / "state") as store:
        objects = tmp_path / "objects"
        bounds = FileBounds(file_bytes=4 * MIB, tenant_bytes=10 * MIB)
        yield FileService(store.files, ObjectOpener(lambda: ObjectStore.in_directory(objects)), bounds)


@pytest.fixture
async def surface(files: FileService) -> Surface:
    return Surface(files=files)


def lines(size: int) -> bytes:
    return (b'{"custom_id":"x"}\n' * (size // 18 + 1))[:size]


async def test_an_idempotency_key_keeps_one_file(sdk: AsyncOpenAI) -> None:
    async def keep(content: bytes, key: str = "once") -> str:
        headers = {"Idempotency-Key": key}
        return (await sdk.files.create(file=("a", content), purpose="batch", extra_headers=headers)).id

    made = await keep(b"one")
    assert await keep(b"one") == made
    with pytest.raises(openai.UnprocessableEntityError, match="was used before for another request"):
        await keep(b"two")
    with pytest.raises(openai.BadRequestError, match="Idempotency-Key"):
        await keep(b"one", "a b")
    assert [file.id async for file in sdk.files.list()] == [made]


async def test_an_object_store_that_is_away_is_told_as_such(
    sdk: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object, **__: object) -> None:
        raise ObjectStorageError("the bucket is away")

    monkeypatch.setattr(ObjectStore, "put", failing)
    with pytest.raises(openai.InternalServerError, match="cannot reach its object store just now") as failed:
        await sdk.files.create(file=b"one", purpose="batch")
    assert failed.value.status_code == 503
    assert [file.id async for file in sdk.files.list()] == []


async def test_a_file_goes_in_and_out(sdk: AsyncOpenAI) -> None:
    content = lines(3 * MIB + 5)
    made = await sdk.files.create(file=("in put.jsonl", content), purpose="batch")
    assert (made.bytes, made.filename, made.purpose) == (len(content), "in put.jsonl", "batch")
    assert made.status == "processed"
    assert made.expires_at == made.created_at + 30 * 86_400, "as OpenAI keeps those of batches"
    assert await sdk.files.retrieve(made.id) == made
    assert (await sdk.files.content(made.id)).content == content
    assert (await sdk.files.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError, match="There is no file"):
        await sdk.files.retrieve(made.id)


async def test_an_empty_file_and_one_for_good(sdk: AsyncOpenAI) -> None:
    made = await sdk.files.create(file=("a/b/c.txt", b""), purpose="user_data")
    assert (made.bytes, made.expires_at, made.filename) == (0, None, "c.txt")
    assert (await sdk.files.content(made.id)).content == b""


async def test_a_file_expires_when_it_is_told_to(sdk: AsyncOpenAI) -> None:
    after = {"anchor": "created_at", "seconds": 3600}
    made = await sdk.files.create(file=io.BytesIO(b"x"), purpose="vision", expires_after=after)  # type: ignore[arg-type]
    assert made.expires_at == made.created_at + 3600
    with pytest.raises(openai.BadRequestError, match="from 3600 to 2592000"):
        await sdk.files.create(
            file=b"x", purpose="vision", expires_after={"anchor": "created_at", "seconds": 60}
        )


async def test_files_are_listed_in_pages(sdk: AsyncOpenAI) -> None:
    ids = [(await sdk.files.create(file=b"x", purpose="batch")).id for _ in range(5)]
    await sdk.files.create(file=b"x", purpose="vision")
    page = await sdk.files.list(limit=2, purpose="batch")
    assert ([file.id for file in page.data], page.has_more) == (ids[:2:-1], True)
    assert [file.id async for file in page] == ids[::-1]
    oldest = await sdk.files.list(order="asc", after=ids[3], purpose="batch")
    assert ([file.id for file in oldest.data], oldest.has_more) == (ids[4:], False)


@pytest.mark.parametrize(
    "query",
    [b"limit=0", b"limit=10001", b"limit=x", b"limit=" + b"9" * 5000, b"order=up", b"after=file-none"],
)
async def test_a_list_that_cannot_be_is_refused(surface: Surface, query: bytes) -> None:
    call = surface.ask("GET", "/v1/files", (b"authorization", b"Bearer " + KEY.encode()), query=query)
    call.body(b"")
    assert (await call.done()).status == (404 if b"after" in query else 400)


async def test_what_is_no_purpose_is_refused_before_the_file_is_read(
    sdk: AsyncOpenAI, files: FileService
) -> None:
    for purpose in ("batch_output", "other"):
        with pytest.raises(openai.BadRequestError, match="'purpose' must be one of"):
            await sdk.files.create(file=lines(MIB), purpose=purpose)  # type: ignore[arg-type]
    assert await files.list("default", purpose=None, after=None, limit=9, newest_first=True) == ()


async def test_too_much_is_refused(sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="4194304 bytes at most") as long:
        await sdk.files.create(file=lines(4 * MIB + 1), purpose="batch")
    assert long.value.status_code == 413
    for _ in range(2):
        await sdk.files.create(file=lines(4 * MIB), purpose="batch")
    with pytest.raises(openai.RateLimitError, match="may keep") as full:
        await sdk.files.create(file=lines(3 * MIB), purpose="batch")
    assert full.value.code == "insufficient_quota"


async def test_tenants_do_not_see_each_others_files(surface: Surface, sdk: AsyncOpenAI) -> None:
    made = await sdk.files.create(file=b"secret", purpose="batch")
    surface.keys.principal = Principal("k2", "other", "other")
    for ask in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
        with pytest.raises(openai.NotFoundError):
            await ask(made.id)
    assert (await sdk.files.list()).data == []


async def test_a_key_for_other_routes_may_not(tmp_path: Path, files: FileService) -> None:
    scopes = limited(routes=["chat"])
    surface = Surface(files=files, keys=FakeKeys(Principal("k", "k", "default", scopes=scopes)))
    call = await surface.get("/v1/files")
    assert (call.status, error_in(call.content)["code"]) == (403, "forbidden")


async def test_files_need_a_key_and_their_methods(surface: Surface) -> None:
    assert (await surface.get("/v1/files", key=False)).status == 401
    assert (await surface.get("/v1/files", method="PUT")).status == 405
    call = await surface.post("/v1/files", b"{}", (b"content-type", b"application/json"))
    assert (call.status, error_in(call.content)["param"]) == (400, "content-type")


async def test_what_a_file_is_can_be_asked_without_its_bytes(surface: Surface, sdk: AsyncOpenAI) -> None:
    made = await sdk.files.create(file=("ü.txt", b"12345"), purpose="user_data")
    call = await surface.get(f"/v1/files/{made.id}/content", method="HEAD")
    assert (call.status, call.headers["content-length"], call.content) == (200, "5", b"")
    assert call.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BC.txt"
    assert call.headers["x-content-type-options"] == "nosniff"


async def test_a_client_that_leaves_leaves_nothing(surface: Surface, files: FileService) -> None:
    call = surface.ask(
        "POST",
        "/v1/files",
        (b"authorization", b"Bearer " + KEY.encode()),
        (b"content-type", b"multipart/form-data; boundary=x"),
    )
    call.body(b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nabc', more=True)
    call.disconnect()
    await call.done()
    assert [status for _, status, _ in surface.finished] == [499]
    listed = orjson.loads((await surface.get("/v1/files")).content)
    assert listed == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
