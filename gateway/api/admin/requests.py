"""``/admin/requests``: decision records of all processes of the gateway (docs/admin.md)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.api.admin.fleet import OtherProcesses, usable_answers, without_answers
from gateway.api.admin.resources.resource import Json
from gateway.api.admin.routes import AdminCall, AdminMethod, read_query
from gateway.dispatch.decisions.description import describe, newest, summarize
from gateway.dispatch.decisions.filters import (
    SCHEMAS,
    BadFilter,
    Position,
    RecordFilter,
    cursor_of,
    position_of,
)
from gateway.dispatch.decisions.records import KeptRequest, RequestRecords
from gateway.domain.errors import BadRequest, RecordNotFound
from gateway.domain.scopes import AdminRole
from gateway.domain.slices import in_slices


@dataclass(frozen=True)
class RequestsAdmin:
    """The pages, and what sibling processes are told."""

    records: RequestRecords
    process: str
    """This one's name."""
    siblings: OtherProcesses | None = None
    """The other processes of the gateway; None: there are none."""

    def __post_init__(self) -> None:
        """Answer what siblings ask."""
        if self.siblings is not None:
            self.siblings.answer("requests", self._requests)
            self.siblings.answer("request", self._request)

    def methods(self) -> list[AdminMethod]:
        """What may be asked."""
        viewer = AdminRole.VIEWER
        return [
            AdminMethod("GET", "/admin/requests", viewer, self.list_requests, SCHEMAS),
            AdminMethod("GET", "/admin/requests/{id:path}", viewer, self.show_request),
        ]

    async def list_requests(self, call: AdminCall) -> Json:
        """What waits or runs, and what is kept of requests that are over, the latest first."""
        query = read_query(call.exchange)
        asked = _filter(query)
        own = await self._found(asked)
        answers = None
        pages = [own]
        if self.siblings is not None:
            text = orjson.dumps(query).decode()
            answers = usable_answers(await self.siblings.ask_all("requests", filter=text), _check_page)
            pages += answers.found.values()
        rows = [(_position(row["position"]), row["request"]) for page in pages for row in page["rows"]]
        rows.sort(key=lambda row: row[0], reverse=True)
        more = len(rows) > asked.limit
        shown = rows[: asked.limit]
        kept = {kind: sum(int(page["kept"][kind]) for page in pages) for kind in own["kept"]}
        return {
            "requests": [request for _, request in shown],
            "next": cursor_of(shown[-1][0]) if more and shown else None,
            "kept": kept,
        } | ({} if answers is None else without_answers(answers))

    async def show_request(self, call: AdminCall) -> Json:
        """The decision record of a request; of those with the same id, which clients may choose, the one that
        arrived last."""
        id_ = call.names["id"]
        found = [await self._request({"id": id_})]
        missing: Json = {}
        if self.siblings is not None:
            answers = usable_answers(await self.siblings.ask_all("request", id=id_), _check_record)
            found += answers.found.values()
            missing = without_answers(answers)
        records = [each["request"] for each in found if each["request"] is not None]
        if not records:
            raise RecordNotFound(self._why_unknown(missing))
        return dict(max(records, key=lambda each: float(each["at"]))) | missing

    def _why_unknown(self, missing: Mapping[str, Any]) -> str:
        settings = self.records.settings
        text = (
            f"No record of this request is kept: there is one of the last {settings.recent} requests of each "
            f"process, of the last {settings.slow} slow and of the last {settings.failed} failed ones"
        )
        if missing:
            return f"{text}; these processes do not answer: {', '.join(missing['missing'])}."
        return f"{text}."

    # --- Of this process ---

    async def _found(self, asked: RecordFilter) -> Json:
        slow_s = self.records.settings.slow_s
        taken: list[tuple[Position, KeptRequest]] = []
        async for each in in_slices(self.records.known()):
            if asked.takes(each, slow_s):
                taken.append((position_of(each, self.process), each))
        rows = asked.first(taken)
        return {
            "rows": [
                {"position": position, "request": summarize(each, self.process, slow_s)}
                for position, each in rows
            ],
            "kept": self.records.kept(),
        }

    async def _requests(self, asked: Json) -> Json:
        """What a sibling asks; ``filter`` holds the parameters of its client's query."""
        try:
            query = orjson.loads(str(asked.get("filter", "{}")))
        except orjson.JSONDecodeError:
            raise BadRequest("The filter cannot be read.", param="filter", code="invalid_value") from None
        return await self._found(_filter(query if isinstance(query, dict) else {}))

    async def _request(self, asked: Json) -> Json:
        id_ = str(asked.get("id", ""))
        record = newest([each async for each in in_slices(self.records.known()) if each.facts.id == id_])
        if record is None:
            return {"request": None}
        return {"request": describe(record, self.process, self.records.settings.slow_s)}


def _filter(query: Mapping[str, str]) -> RecordFilter:
    """Raises BadRequest."""
    try:
        return RecordFilter.read({str(name): str(text) for name, text in query.items()})
    except BadFilter as error:
        raise BadRequest(f"{error.parameter}: {error}", param=error.parameter, code="invalid_value") from None


def _position(value: Any) -> Position:
    """As siblings send it."""
    at, process, id_ = value
    return int(at), str(process), str(id_)


def _check_page(page: Json) -> None:
    """Raises KeyError, TypeError and ValueError for what is no page."""
    for row in page["rows"]:
        _position(row["position"])
        row["request"]["id"]
    for count in page["kept"].values():
        int(count)


def _check_record(answer: Json) -> None:
    """Raises KeyError, TypeError and ValueError for what is no record."""
    if answer["request"] is not None:
        float(answer["request"]["at"])
