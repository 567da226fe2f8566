"""The Uploads API as OpenAI's SDK uses it, and what it refuses."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI

from gateway.domain.request import Principal
from gateway.jobs.files import FileBounds, FileService
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.uploads import UploadService
from gateway.storage import Store
from gateway.storage.errors import ObjectStorageError
from gateway.storage.objects import ObjectStore
from tests.gateway.api.support import JSON_TYPE, Surface, error_in

MIB = 1024 * 1024
NOW_S = 1_800_000_000.0


class Depot:
    """Uploads on a store and a directory, with a clock of their own."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.now_s = NOW_S
        self.directory = directory
        self.files = FileService(
            store.files,
            ObjectOpener(lambda: ObjectStore.in_directory(directory)),
            FileBounds(file_bytes=4 * MIB, tenant_bytes=5 * MIB),
            wall=lambda: self.now_s,
        )
        self.uploads = UploadService(store.uploads, store.files, self.files)

    def kept(self) -> set[str]:
        return {path.parent.name for path in self.directory.rglob("*") if path.is_file()}


@pytest.fixture
async def depot(tmp_path: Path) -> AsyncIterator[Depot]:
    with Store.open(tmp_path / "state") as store:
        yield Depot(tmp_path / "objects", store)


@pytest.fixture
async def surface(depot: Depot) -> Surface:
    return Surface(files=depot.files, uploads=depot.uploads)


async def begin(sdk: AsyncOpenAI, size_bytes: int) -> str:
    made = await sdk.uploads.create(
        bytes=size_bytes, filename="a.jsonl", mime_type="text/jsonl", purpose="batch"
    )
    return made.id


async def test_an_idempotency_key_begins_one_upload(sdk: AsyncOpenAI, depot: Depot) -> None:
    async def begin_once(size_bytes: int) -> str:
        made = await sdk.uploads.create(
            bytes=size_bytes,
            filename="a.jsonl",
            mime_type="text/jsonl",
            purpose="batch",
            extra_headers={"Idempotency-Key": "once"},
        )
        return made.id

    assert await begin_once(9) == await begin_once(9)
    with pytest.raises(openai.UnprocessableEntityError, match="was used before for another request"):
        await begin_once(10)


async def test_the_sdk_sends_a_file_in_parts(sdk: AsyncOpenAI, depot: Depot) -> None:
    content = bytes(range(256)) * (2 * MIB // 256 + 1)
    done = await sdk.uploads.upload_file_chunked(
        file=content,
        filename="dir/a b.jsonl",
        bytes=len(content),
        mime_type="text/jsonl",
        purpose="batch",
        part_size=MIB,
        md5=hashlib.md5(content).hexdigest(),
    )
    assert (done.status, done.object, done.bytes, done.purpose) == (
        "completed",
        "upload",
        len(content),
        "batch",
    )
    assert done.file is not None
    assert (done.file.bytes, done.file.filename) == (len(content), "a b.jsonl")
    assert done.file.expires_at == done.file.created_at + 30 * 86_400
    assert (await sdk.files.content(done.file.id)).content == content
    assert depot.kept() == {"files"}, "the parts are gone"


async def test_parts_are_joined_as_they_are_named_and_asking_again_changes_nothing(sdk: AsyncOpenAI) -> None:
    upload = await begin(sdk, 6)
    second = await sdk.uploads.parts.create(upload, data=b"def")
    first = await sdk.uploads.parts.create(upload, data=b"abc")
    assert (first.object, first.upload_id) == ("upload.part", upload)
    done = await sdk.uploads.complete(upload, part_ids=[first.id, second.id])
    again = await sdk.uploads.complete(upload, part_ids=[second.id, first.id])
    assert done == again
    assert done.file is not None
    assert (await sdk.files.content(done.file.id)).content == b"abcdef"
    assert len((await sdk.files.list()).data) == 1


async def test_what_does_not_fit_can_be_tried_again(sdk: AsyncOpenAI, depot: Depot) -> None:
    upload = await begin(sdk, 6)
    part = await sdk.uploads.parts.create(upload, data=b"abcdef")
    with pytest.raises(openai.BadRequestError, match="no part part_x") as unknown:
        await sdk.uploads.complete(upload, part_ids=["part_x"])
    assert unknown.value.code == "invalid_parts"
    with pytest.raises(openai.BadRequestError, match="have the MD5 e80b5017098950fc58aad83c8c14978e"):
        await sdk.uploads.complete(upload, part_ids=[part.id], md5="0" * 32)
    assert (await sdk.files.list()).data == []
    assert depot.kept() == {upload}
    assert (await sdk.uploads.complete(upload, part_ids=[part.id])).status == "completed"


async def test_an_upload_is_cancelled_with_its_parts(sdk: AsyncOpenAI, depot: Depot) -> None:
    upload = await begin(sdk, 6)
    await sdk.uploads.parts.create(upload, data=b"abc")
    assert (await sdk.uploads.cancel(upload)).status == "cancelled"
    assert depot.kept() == set()
    with pytest.raises(openai.BadRequestError, match="is cancelled") as ended:
        await sdk.uploads.parts.create(upload, data=b"def")
    assert ended.value.code == "upload_ended"


async def test_an_upload_ends_after_an_hour(sdk: AsyncOpenAI, depot: Depot) -> None:
    upload = await begin(sdk, 6)
    part = await sdk.uploads.parts.create(upload, data=b"abcdef")
    depot.now_s += 3600
    with pytest.raises(openai.BadRequestError, match="is expired"):
        await sdk.uploads.complete(upload, part_ids=[part.id])
    assert await depot.uploads.sweep() == 1
    assert depot.kept() == set()
    assert await depot.uploads.sweep() == 0


async def test_a_sweep_that_can_remove_nothing_fails_and_is_not_made_again_at_once(
    sdk: AsyncOpenAI, depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sdk.uploads.parts.create(await begin(sdk, 6), data=b"abcdef")
    depot.now_s += 3600

    async def away() -> ObjectStore:
        raise ObjectStorageError("the bucket is away")

    monkeypatch.setattr(depot.files, "objects", away)
    with pytest.raises(ObjectStorageError):
        await depot.uploads.sweep()
    monkeypatch.undo()
    assert await depot.uploads.sweep() == 1
    assert depot.kept() == set()


async def test_too_much_is_refused(sdk: AsyncOpenAI, depot: Depot) -> None:
    with pytest.raises(openai.APIStatusError, match="4194304 bytes at most") as long:
        await begin(sdk, 4 * MIB + 1)
    assert long.value.status_code == 413
    upload = await begin(sdk, 3 * MIB)
    with pytest.raises(openai.RateLimitError, match="may keep"):
        await begin(sdk, 3 * MIB)
    for size_bytes in (2 * MIB, 2 * MIB, MIB):
        await sdk.uploads.parts.create(upload, data=b"x" * size_bytes)
    with pytest.raises(openai.APIStatusError, match="twice as many") as more:
        await sdk.uploads.parts.create(upload, data=b"x" * (MIB + 1))
    assert more.value.status_code == 413
    assert depot.kept() == {upload}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b'{"filename":"a","mime_type":"b","purpose":"batch"}', "bytes", "missing_required_parameter"),
        (b'{"bytes":"1","filename":"a","mime_type":"b","purpose":"batch"}', "bytes", "invalid_value"),
        (b'{"bytes":1,"filename":"a","mime_type":"b","purpose":"batch_output"}', "purpose", "invalid_value"),
        (
            b'{"bytes":1,"filename":"a","mime_type":"b","purpose":"batch",'
            b'"expires_after":{"anchor":"created_at","seconds":60}}',
            "expires_after.seconds",
            "invalid_value",
        ),
        (b"[]", None, "invalid_json"),
        (b"{", None, "invalid_json"),
    ],
)
async def test_what_is_no_upload_is_refused(
    surface: Surface, body: bytes, param: str | None, code: str
) -> None:
    call = await surface.post("/v1/uploads", body, JSON_TYPE)
    said = error_in(call.content)
    assert (call.status, said["param"]) == (400, param), said
    if param != "purpose":
        assert said["code"] == code


async def test_tenants_do_not_see_each_others_uploads(surface: Surface, sdk: AsyncOpenAI) -> None:
    upload = await begin(sdk, 6)
    surface.keys.principal = Principal("k2", "other", "other")
    with pytest.raises(openai.NotFoundError):
        await sdk.uploads.parts.create(upload, data=b"abcdef")
    with pytest.raises(openai.NotFoundError):
        await sdk.uploads.cancel(upload)


async def test_a_part_is_a_form_with_data(surface: Surface, sdk: AsyncOpenAI, depot: Depot) -> None:
    upload = await begin(sdk, 6)
    path = f"/v1/uploads/{upload}/parts"
    assert (await surface.post(path, b"{}", JSON_TYPE)).status == 400
    form = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--x--\r\n'
    call = await surface.post(path, form, (b"content-type", b"multipart/form-data; boundary=x"))
    assert (call.status, error_in(call.content)["param"]) == (400, "data")
    assert depot.kept() == set()
    assert (await surface.get("/v1/uploads")).status == 405
