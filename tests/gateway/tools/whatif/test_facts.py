"""What a line of the audit log becomes, and what it does not."""

from typing import Any

import pytest

from gateway.domain.request import Tier
from gateway.observability.audit import facts_of
from gateway.observability.audit.records import timestamp
from gateway.tools.whatif.facts import NotReplayed, as_row, fact_of_line, without_tenants
from shared.protocol.messages import Usage
from tests.gateway.dispatch.decisions.kept import facts
from tests.gateway.tools.whatif.kit import BEGIN_S, fact


def line(**more: Any) -> dict[str, Any]:
    """As the audit log has a request that ended at :data:`BEGIN_S`."""
    usual: dict[str, Any] = {
        "at_s": BEGIN_S,
        "usage": Usage(100, 20, 30),
        "gpu_s": 0.5,
        "queue_s": 0.1,
        "total_s": 2.0,
    }
    request = facts(**usual | more)
    return {"at": timestamp(BEGIN_S), "kind": "request", **facts_of(request)}


def test_a_request_that_was_answered_is_a_fact_with_its_arrival() -> None:
    found = fact_of_line(line(tier=Tier.BATCH))
    assert found.at_s == BEGIN_S - 2.0
    assert (found.model, found.tier, found.tenant, found.outcome) == ("m", Tier.BATCH, "tenant", "answered")
    assert (found.tokens_in, found.tokens_out, found.tokens_cached) == (100, 20, 30)
    assert (found.queued_s, found.first_s, found.total_s, found.gpu_s) == (0.1, 0.5, 2.0, 0.5)
    assert found.deployment == "a/d"
    assert not found.whole


@pytest.mark.parametrize(
    ("more", "outcome"),
    [
        ({"status": 429, "error": "queue_full", "deployments": []}, "refused"),
        ({"status": 503, "error": "no_deployment", "deployments": []}, "refused"),
        ({"status": 502, "error": "engine_failed"}, "failed"),
        ({"status": 499, "error": "client_closed_request"}, "cancelled"),
    ],
)
def test_what_came_of_it_is_told(more: dict[str, Any], outcome: str) -> None:
    assert fact_of_line(line(**more)).outcome == outcome


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"status": 429, "error": "rate_limit_exceeded", "deployments": []}, "limits"),
        ({"status": 400, "error": "bad_request", "deployments": []}, "client"),
        ({"deployments": []}, "reused"),
        ({"model": None}, "unreadable"),
    ],
)
def test_what_never_asked_for_a_slot_is_not_replayed(more: dict[str, Any], code: str) -> None:
    with pytest.raises(NotReplayed) as caught:
        fact_of_line(line(**more))
    assert caught.value.code == code


@pytest.mark.parametrize("broken", [{}, {"at": "now"}, {**line(), "total_ms": "x"}, {**line(), "ran": 7}])
def test_a_line_of_another_shape_is_unreadable(broken: dict[str, Any]) -> None:
    with pytest.raises(NotReplayed) as caught:
        fact_of_line(broken)
    assert caught.value.code == "unreadable"


def test_a_row_has_numbers_and_known_names_and_nothing_else_of_a_line() -> None:
    """Whatever a line holds besides, such as the id that a client chose, is not in a fact."""
    row = as_row(fact_of_line({**line(id="A secret prompt.", alias="A secret alias."), "prompt": "Secret."}))
    words = {"model": "m", "tier": "standard", "tenant": "tenant", "outcome": "answered", "deployment": "a/d"}
    assert {name: value for name, value in row.items() if not isinstance(value, float | int)} == words


def test_tenants_are_numbers_the_busiest_first_and_keep_their_weights() -> None:
    known = [fact(tenant="acme"), fact(tenant="uni"), fact(tenant="uni")]
    hidden, weights = without_tenants(known, {"uni": 3.0, "gone": 2.0})
    assert [each.tenant for each in hidden] == ["t2", "t1", "t1"]
    assert weights == {"t1": 3.0}
