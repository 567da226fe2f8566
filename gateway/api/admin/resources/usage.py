"""The operation on usage: it is read."""

from typing import Any

import orjson

from gateway.api.admin.resources.request import AdminRequest, Json
from gateway.domain.quotas import By
from gateway.storage import Store, Total
from gateway.storage.errors import BadValue

ROWS = 1000
"""Of one answer, at most."""


def show_usage(store: Store, asked: AdminRequest) -> Json:
    """Sums of what was used by key, tenant, model, deployment or day, from a day on; ``next`` goes on."""
    by, most = By(asked.body.get("by", By.KEY)), min(asked.body.get("limit", ROWS), ROWS)
    after = _place(asked.body.get("after"), by)
    found = store.usage.totals(by, asked.body.get("since", ""), after=after, most=most + 1)
    more = orjson.dumps(found[most - 1].place).decode() if len(found) > most else None
    return {"by": by.value, "usage": [_facts(by, each) for each in found[:most]], "next": more}


def _place(text: str | None, by: By) -> list[str]:
    """Raises BadValue."""
    if text is None:
        return []
    try:
        place = orjson.loads(text)
    except orjson.JSONDecodeError:
        place = None
    wanted = 3 if by is By.KEY else 1
    if (
        not isinstance(place, list)
        or len(place) != wanted
        or any(not isinstance(each, str) for each in place)
    ):
        raise BadValue("after is what an answer before gave as next, for the same by")
    return place


def _facts(by: By, total: Total) -> dict[str, Any]:
    amount = total.amount
    return {
        by.value: total.name,
        **({"tenant": total.tenant, "key_id": total.key_id} if by is By.KEY else {}),
        "requests": amount.requests,
        "prompt_tokens": amount.prompt_tokens,
        "completion_tokens": amount.completion_tokens,
        "cached_tokens": amount.cached_tokens,
        "gpu_s": round(amount.gpu_s, 3),
        "cost": round(amount.cost, 6),
    }
