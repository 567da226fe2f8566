"""The pages of decision records, of one process and of several."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.api.admin.requests import RequestsAdmin
from gateway.api.admin.resources.resource import Json
from gateway.app.process_reads import FOR_OTHERS
from gateway.dispatch.decisions.records import RequestRecords
from gateway.domain.scopes import AdminRole
from gateway.runtime.workers.siblings import SiblingAnswers
from tests.gateway.api.admin.house import House
from tests.gateway.dispatch.decisions.kept import facts, records


class Others:
    """One other process that answers, and one that does not."""

    def __init__(self, records: RequestRecords) -> None:
        self.answers: dict[str, Callable[[Json], Awaitable[Json]]] = {}
        self.other = RequestsAdmin(records, "p-2", self)
        self.theirs = dict(self.answers)
        self.silent: list[str] = []
        self.says: Json | None = None

    def answer(self, question: str, answerer: Callable[[Json], Awaitable[Json]]) -> None:
        self.answers[question] = answerer

    async def ask_all(self, question: str, **asked: Any) -> SiblingAnswers:
        assert question in FOR_OTHERS
        said = await self.theirs[question]({name: str(value) for name, value in asked.items()})
        return SiblingAnswers({"p-2": said if self.says is None else self.says}, self.silent)

    def gone(self) -> dict[str, str]:
        return {}


@pytest.fixture
def others(house: House) -> Others:
    made = Others(records(recent=100))
    house.offer(RequestsAdmin(house.records, "p-1", made).methods())
    return made


def add(book: RequestRecords, number: int, **more: Any) -> None:
    book.add(facts(number, **more), "alice", 1, 2, None)


async def test_a_list_is_for_viewers_and_has_what_is_asked_for(house: House) -> None:
    add(house.records, 1)
    add(house.records, 2, model="n")
    status, found, headers = await house.ask("GET", "/admin/requests", AdminRole.VIEWER, query=b"model=n")
    assert status == 200
    assert [each["id"] for each in found["requests"]] == ["r2"]
    assert found["kept"] == {"recent": 2, "slow": 0, "failed": 0}
    assert "missing" not in found
    assert headers["cache-control"] == "no-store"
    status, _, _ = await house.ask("GET", "/admin/requests", None)
    assert status == 403


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=x", "limit"), ("wrong=1", "wrong"), ("state=gone", "state"), ("model=", "model")],
)
async def test_a_filter_that_cannot_be_is_refused_with_its_name(house: House, query: str, param: str) -> None:
    status, found, _ = await house.ask("GET", "/admin/requests", query=query.encode())
    assert (status, found["error"]["code"], found["error"]["param"]) == (400, "invalid_value", param)


async def test_lists_of_several_processes_are_one_in_pages(house: House, others: Others) -> None:
    for number in range(10):
        add(house.records if number % 2 else others.other.records, number)
    ids: list[str] = []
    after = ""
    while True:
        _, found, _ = await house.ask("GET", "/admin/requests", query=f"limit=3{after}".encode())
        ids += [each["id"] for each in found["requests"]]
        if found["next"] is None:
            break
        after = f"&after={found['next'].replace('|', '%7C')}"
    assert ids == [f"r{number}" for number in reversed(range(10))]
    assert {each["process"] for each in found["requests"]} <= {"p-1", "p-2"}


async def test_a_record_is_found_at_another_process(house: House, others: Others) -> None:
    add(others.other.records, 7)
    status, found, _ = await house.ask("GET", "/admin/requests/r7", AdminRole.VIEWER)
    assert (status, found["id"], found["process"]) == (200, "r7", "p-2")


async def test_who_does_not_answer_is_named(house: House, others: Others) -> None:
    others.silent = ["p-3"]
    add(house.records, 1)
    _, found, _ = await house.ask("GET", "/admin/requests/r1")
    assert found["missing"] == ["p-3"]
    _, found, _ = await house.ask("GET", "/admin/requests")
    assert found["missing"] == ["p-3"]
    status, found, _ = await house.ask("GET", "/admin/requests/unknown")
    assert status == 404
    assert "do not answer: p-3" in found["error"]["message"]


@pytest.mark.parametrize("says", [{}, {"rows": [{}], "kept": {}}, {"request": {"id": "r1"}}, {"rows": 1}])
async def test_what_another_version_says_is_left_out_by_name(
    house: House, others: Others, says: Json
) -> None:
    others.says = says
    add(house.records, 1)
    for path in ("/admin/requests", "/admin/requests/r1"):
        status, found, _ = await house.ask("GET", path)
        assert (status, found["missing"]) == (200, ["p-2"])


async def test_ids_that_clients_choose_are_found_whatever_is_in_them(house: House) -> None:
    add(house.records, 1, id="team/a:1=x@y+z")
    status, found, _ = await house.ask("GET", "/admin/requests/team/a:1=x@y+z")
    assert (status, found["id"]) == (200, "team/a:1=x@y+z")
