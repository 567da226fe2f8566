"""Batches that cannot be, or whose budget or file goes while they run, at a running gateway."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import openai
import orjson
import pytest
from openai import OpenAI
from openai.types import Batch

from gateway.domain.batches import MOST_INPUT_BYTES, MOST_LINES
from gateway.domain.files import MIB
from gateway.storage import Store
from tests.integration.conftest import MODEL, Site, build_site, leave
from tests.support.processes import answer_to, until

CHAT: Final = "/v1/chat/completions"
LINES = 20
BUDGETS = {"halfway": 70, "roomy": 450}
"""Tokens a day, by tenant. A line uses 5 of ``halfway`` and reserves 6: thirteen fit. Of ``roomy`` each
reserves more than 100 and uses 4."""


@pytest.fixture(scope="module")
def keys() -> dict[str, str]:
    """By tenant."""
    return {}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, str]) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("bad-batches")
    with Store.open(directory / "gateway-state", serve=True) as store:
        for tenant, tokens in BUDGETS.items():
            keys[tenant] = store.keys.create(tenant, tenant, time.time())
            store.limits.tenants.change(tenant, {"tokens_per_day": tokens}, time.time())
    built = build_site(
        directory, "--slots", "8", gateway_environment={"TRUNKLINE_GATEWAY_JOBS__LOOK_S": "0.1"}
    )
    keys["tests"] = built.key
    yield built
    leave(built.house)


@dataclass(frozen=True, slots=True)
class Desk:
    """Makes batches as one tenant."""

    sdk: OpenAI

    def upload(self, content: bytes | Path) -> str:
        return self.sdk.files.create(file=content, purpose="batch").id

    def begin(self, file_id: str) -> Batch:
        return self.sdk.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")

    def ended(self, batch: Batch) -> Batch:
        found = [batch]

        def is_over() -> bool:
            found[:] = [self.sdk.batches.retrieve(batch.id)]
            return found[0].status in ("failed", "completed", "expired", "cancelled")

        until("the batch is over", is_over, 120.0)
        return found[0]

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        return [orjson.loads(line) for line in self.sdk.files.content(file_id).content.splitlines()]


@pytest.fixture
def desk(site: Site) -> Iterator[Desk]:
    with OpenAI(base_url=site.base_url, api_key=site.key, max_retries=0) as sdk:
        yield Desk(sdk)


def requests(count: int, max_tokens: int, **other: object) -> bytes:
    """A file of so many lines, whose ids are their numbers."""

    def line(number: int) -> Mapping[str, object]:
        messages = [{"role": "user", "content": f"question {number}"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": max_tokens} | other
        return {"custom_id": str(number), "method": "POST", "url": CHAT, "body": body}

    return b"\n".join(orjson.dumps(line(number)) for number in range(count))


def errors_of(batch: Batch) -> list[tuple[str | None, int | None]]:
    assert batch.errors is not None
    return [(each.code, each.line) for each in batch.errors.data or ()]


def test_a_file_of_one_line_too_many_is_no_batch(desk: Desk) -> None:
    done = desk.ended(desk.begin(desk.upload(requests(MOST_LINES + 1, 1))))
    assert (done.status, errors_of(done)) == ("failed", [("too_many_requests", None)])
    assert done.errors is not None
    assert "50000" in str((done.errors.data or [])[0].message)
    assert (done.output_file_id, done.error_file_id) == (None, None)


def test_a_file_of_201_megabytes_is_kept_in_pieces_and_is_no_batch(
    desk: Desk, site: Site, tmp_path: Path
) -> None:
    sparse = tmp_path / "in.jsonl"
    with sparse.open("wb") as file:
        file.truncate(MOST_INPUT_BYTES + MIB)
    before = highest_bytes(site)
    file_id = desk.upload(sparse)
    done = desk.ended(desk.begin(file_id))
    assert (done.status, errors_of(done)) == ("failed", [("file_too_large", None)])
    assert highest_bytes(site) - before < 64 * MIB
    desk.sdk.files.delete(file_id)


def highest_bytes(site: Site) -> int:
    """The most memory that the gateway has held so far."""
    status = Path(f"/proc/{site.gateway.child.pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def test_a_budget_that_ends_halfway_leaves_each_line_its_answer_or_its_error(
    site: Site, keys: Mapping[str, str]
) -> None:
    with OpenAI(base_url=site.base_url, api_key=keys["halfway"], max_retries=0) as sdk:
        desk = Desk(sdk)
        done = desk.ended(desk.begin(desk.upload(requests(LINES, 3))))
        assert done.status == "completed"
        answers, errors = desk.lines(done.output_file_id), desk.lines(done.error_file_id)
    answered = {each["custom_id"] for each in answers}
    refused = {each["custom_id"] for each in errors}
    assert (len(answers), len(errors)) == (len(answered), len(refused))
    assert answered | refused == {str(number) for number in range(LINES)}
    assert len(answered) == 13
    codes = {each["error"]["code"] for each in errors}
    assert codes == {"insufficient_quota"}


def test_a_budget_that_running_lines_have_reserved_is_waited_for(site: Site, keys: Mapping[str, str]) -> None:
    with OpenAI(base_url=site.base_url, api_key=keys["roomy"], max_retries=0) as sdk:
        desk = Desk(sdk)
        done = desk.ended(
            desk.begin(desk.upload(requests(10, 100, script={"ends_after": 2, "delay_s": 0.3})))
        )
        assert (done.status, done.error_file_id) == ("completed", None)
        assert len(desk.lines(done.output_file_id)) == 10


def test_a_file_that_is_deleted_while_its_batch_runs_is_answered_to_its_end(desk: Desk, site: Site) -> None:
    file_id = desk.upload(requests(LINES, 3, script={"delay_s": 0.5}))
    batch = desk.begin(file_id)
    until("a line is being answered", lambda: site.engine.stats()["running"] > 0, 60.0)
    desk.sdk.files.delete(file_id)
    with pytest.raises(openai.NotFoundError):
        desk.sdk.files.retrieve(file_id)
    with pytest.raises(openai.NotFoundError):
        desk.begin(file_id)
    done = desk.ended(batch)
    assert (done.status, done.error_file_id) == ("completed", None)
    answers = desk.lines(done.output_file_id)
    said = {
        each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in answers
    }
    assert said == {str(number): answer_to(f"question {number}", 3) for number in range(LINES)}
