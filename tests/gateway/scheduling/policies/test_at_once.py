"""One request that waits alone is decided on at once where there is nothing to wait for."""

import random

import pytest
from msgspec import structs

from gateway.scheduling.base import NO_CAP, DeploymentView, PendingRequest
from gateway.scheduling.policies import cost
from gateway.scheduling.scheduler import Scheduler
from tests.gateway.scheduling.views import H100, L4, LABELS, ROUTES, WHERES, request, view


def placed(
    views: list[DeploymentView], item: PendingRequest, known: set[str], *, at_once: bool
) -> tuple[object, object]:
    """What ``cost`` says, and when it wants to be asked again. The like of ``item`` was at those of the keys
    ``known`` before."""
    scheduler = Scheduler("cost")
    for each in views:
        scheduler.deployment_added(each, 0.0)
        if each.key in known:
            scheduler.placed(structs.replace(item, number=1000), each, 0.0)
    with pytest.MonkeyPatch.context() as patched:
        if not at_once:
            patched.setattr(cost, "choose_at_once", lambda *_: None)
        return scheduler.assign("m", [item], views, 100.0), scheduler.look_again_s("m")


CASES = 1500


def drawn(chance: random.Random) -> tuple[PendingRequest, list[DeploymentView]]:
    """A request, and deployments of which most have room for it."""
    views = []
    for number in range(chance.choice((1, 2, 3))):
        slots, rarely = chance.randint(1, 3), chance.random() < 0.05
        views.append(
            DeploymentView(
                f"d{number}",
                "agent",
                "m",
                frozenset(chance.sample((*ROUTES, "any"), chance.randint(1, 2))),
                slots,
                slots if rarely else chance.randrange(slots),
                usable=chance.random() > 0.1,
                cap=chance.choice((NO_CAP, NO_CAP, 1, 2)),
                trial=chance.random() < 0.05,
                version=chance.choice(("v1", "v2")),
                continues=dict.fromkeys(chance.sample(ROUTES, chance.randint(0, 2)), "prompt"),
                device=chance.choice((H100, H100, L4, "a thing of which nobody heard")),
                kv_free_tokens=chance.choice((None, None, 800, 5000)),
                loaded=chance.random() < 0.8,
                health_factor=chance.choice((1.0, 0.25)),
                labels=chance.choice(LABELS),
                translated=frozenset(chance.choice(((), (), ROUTES[:1], ROUTES))),
            )
        )
    bound = chance.random() < 0.2
    item = PendingRequest(
        1,
        chance.choice(ROUTES),
        100.0,
        0.0,
        avoid=frozenset(chance.sample([each.key for each in views], 1)) if bound else frozenset(),
        version=chance.choice((None, "v1", "v2")) if bound else None,
        continuing=bound and chance.random() < 0.3,
        session_key=chance.choice((None, "s")),
        input_tokens=chance.choice((0, 10, 600, 4000)),
        output_tokens=chance.choice((0, 1, 300)),
        prefix=tuple(range(chance.randint(0, 4))),
        ttft_s=chance.choice((None, 0.5)),
        where=chance.choice(WHERES) if bound else None,
    )
    return item, views


def test_it_goes_where_a_round_would_send_it() -> None:
    chance, chosen = random.Random(1), 0
    for _ in range(CASES):
        item, views = drawn(chance)
        known = {each.key for each in views if chance.random() < 0.4}
        found = placed(views, item, known, at_once=True)
        assert found == placed(views, item, known, at_once=False), (item, views, known)
        chosen += bool(found[0])
    assert chosen > CASES / 4


@pytest.mark.parametrize("slow", [0, 1])
def test_no_round_is_made_where_nothing_can_be_waited_for(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_Round", None)
    scheduler, views = Scheduler("cost"), [view("a"), view("b")]
    views[slow].device = L4
    for each in views:
        scheduler.deployment_added(each, 0.0)
    ((assigned,)) = scheduler.assign("m", [request(1)], views, 0.0)
    assert assigned.key == views[1 - slow].key
