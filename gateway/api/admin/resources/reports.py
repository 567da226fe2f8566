"""Usage and the audit log: they are read, page after page, and the log is verified."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from annotated_types import Ge, Le, MaxLen

from gateway.api.admin.resources.resource import AdminRequest, BadInput, Field, Json, Resource, facts_of
from gateway.domain.quotas import UsageGrouping
from gateway.domain.scopes import AdminRole

if TYPE_CHECKING:
    from gateway.storage import Store, Total

ROWS = 1000
"""The most rows in one answer."""

USAGE = Resource(
    "usage",
    "/admin/usage",
    "Requests, tokens, GPU-seconds and money used.",
    example="trunkline usage --by tenant",
)
AUDIT = Resource(
    "audit",
    "/admin/audit",
    "The audit log: who did what, which requests ran where, what they used.",
    example="trunkline audit verify",
)

_PAGE_FIELDS = (
    Field("after", Annotated[str, MaxLen(2000)]),
    Field("limit", Annotated[int, Ge(1), Le(ROWS)], default=ROWS),
)


@USAGE.operation(
    "GET",
    fields=(
        Field("by", UsageGrouping, default=UsageGrouping.KEY),
        Field("since", str, default="", pattern=r"^(\d{4}-\d\d-\d\d)?$"),
        *_PAGE_FIELDS,
    ),
)
def show_usage(store: "Store", request: AdminRequest) -> Json:
    """Sums of what was used by key, tenant, model, deployment or day, from a day on; ``next`` goes on."""
    by, most = UsageGrouping(request.body["by"]), request.body["limit"]
    after = _place(request.body.get("after"), by)
    found = store.usage.totals(by, request.body["since"], after=after, most=most + 1)
    more = orjson.dumps(found[most - 1].place).decode() if len(found) > most else None
    return {"by": by.value, "usage": [_facts(by, each) for each in found[:most]], "next": more}


def _place(text: str | None, by: UsageGrouping) -> list[str]:
    """Raises BadInput."""
    if text is None:
        return []
    try:
        place = orjson.loads(text)
    except orjson.JSONDecodeError:
        place = None
    wanted = 3 if by is UsageGrouping.KEY else 1
    if (
        not isinstance(place, list)
        or len(place) != wanted
        or any(not isinstance(each, str) for each in place)
    ):
        raise BadInput("after is what an answer before gave as next, for the same by")
    return place


def _facts(by: UsageGrouping, total: "Total") -> dict[str, Any]:
    amount = asdict(total.amount)
    return {
        by.value: total.name,
        **({"tenant": total.tenant, "key_id": total.key_id} if by is UsageGrouping.KEY else {}),
        **amount,
        "gpu_s": round(amount["gpu_s"], 3),
        "cost": round(amount["cost"], 6),
    }


@AUDIT.operation(
    "GET",
    "/verify",
    role=AdminRole.VIEWER,
    fields=(Field("expect", str, pattern=r"^[0-9]{1,18}:[0-9a-fA-F]{64}$"),),
    own_process=True,
)
def verify_audit(store: "Store", request: AdminRequest) -> Json:
    """Whether the log is whole, what is wrong with it, and its end, to be kept elsewhere. Reads all of it,
    and holds it against the line that the store knows. ``expect`` is an end of the log that was written down,
    SEQ:HASH. ``elsewhere`` are logs that are not in this state directory: they were not read."""
    from gateway.observability.audit import Anchor, trusted_keys, verify
    from gateway.observability.audit.records import timestamp
    from gateway.observability.audit.segments import DIRECTORY

    expect = request.body.get("expect")
    seq, _, digest = (expect or "").partition(":")
    anchors = [] if expect is None else [Anchor(int(seq), digest.lower())]
    heads = store.audit_heads.list()  # before the files: what is noted later may not be in them yet
    own = next((each for each in heads if each.chain == store.audit_chain), None)
    if own is not None:
        where = f"the store has known since {timestamp(own.at_s)}"
        anchors.append(Anchor(own.seq, own.hash, where, may_be_deleted=True))
    report = verify(store.state_dir / DIRECTORY, trusted_keys(store), anchors)
    return facts_of(report, ("sound", "findings", "notes", "lines", "segments")) | {
        "first": report.first_seq,
        "last": report.last_seq,
        "end": f"{report.last_seq}:{report.last_hash}",
        "chain": store.audit_chain,
        "anchored": None if own is None else facts_of(own, ("seq", "hash", "at_s")),
        "elsewhere": [facts_of(each, _HEAD) for each in heads if each is not own],
    }


_HEAD = ("chain", "host", "seq", "hash", "at_s")


@AUDIT.operation("DELETE", "/heads/{chain}")
def forget_audit_head(store: "Store", request: AdminRequest) -> Json:
    """Forget the line that the store knows of an audit log: of a log that is gone for good, or that goes on
    from a backup. ``verify`` held that against it."""
    return facts_of(store.audit_heads.forget(request.name), _HEAD)


@AUDIT.operation(
    "GET",
    fields=(
        Field("since", Annotated[str, MaxLen(40)], default=""),
        Field("kind", Annotated[str, MaxLen(2000)], default=""),
        *_PAGE_FIELDS,
    ),
)
def export_audit(store: "Store", request: AdminRequest) -> Json:
    """Lines as they are in the log, the oldest first, from a time on and of some kinds (separated by
    commas); ``next`` goes on, also where an answer found none."""
    from gateway.observability.audit.segments import DIRECTORY, read_page

    body = request.body
    kinds = tuple(filter(None, body["kind"].split(",")))
    found = read_page(store.state_dir / DIRECTORY, body["since"], kinds, body.get("after"), body["limit"])
    return {"lines": found.lines, "next": found.next}
