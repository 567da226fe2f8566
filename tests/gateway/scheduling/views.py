"""Deployments and requests as policies see them, and fleets of them at random."""

from collections.abc import Iterable

from hypothesis import strategies as st

from gateway.domain.residency import read_where
from gateway.scheduling.base import NO_CAP, DeploymentView, PendingRequest
from gateway.scheduling.scheduler import Scheduler

H100, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA L4"
ROUTES = ("chat", "embeddings", "rerank")
LABELS: tuple[dict[str, str], ...] = (
    {},
    {"region": "eu"},
    {"region": "eu", "tier": "gold"},
    {"region": "us"},
)
WHERES = (None, None, read_where("region=eu"), read_where("region=us,region=eu"), read_where("tier=gold"))


def view(
    key: str,
    slots: int = 4,
    in_flight: int = 0,
    *,
    device: str = H100,
    routes: Iterable[str] = ("chat",),
    kv_free_tokens: int | None = None,
    translated: Iterable[str] = (),
) -> DeploymentView:
    return DeploymentView(
        key,
        "agent",
        "m",
        frozenset(routes),
        slots,
        in_flight,
        device=device,
        kv_free_tokens=kv_free_tokens,
        translated=frozenset(translated),
    )


def request(
    number: int,
    input_tokens: int = 1000,
    output_tokens: int = 100,
    *,
    prefix: tuple[int, ...] = (),
    session: str | None = None,
    avoid: Iterable[str] = (),
    ttft_s: float | None = None,
) -> PendingRequest:
    return PendingRequest(
        number,
        "chat",
        100.0,
        0.0,
        session_key=session,
        avoid=frozenset(avoid),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        prefix=prefix,
        ttft_s=ttft_s,
    )


class CostFleet:
    """A fleet under the policy ``cost``, with a clock."""

    def __init__(self, *views: DeploymentView) -> None:
        self.scheduler = Scheduler("cost")
        self.views = {each.key: each for each in views}
        self.now = 100.0
        for each in views:
            self.scheduler.deployment_added(each, self.now)

    def place(self, item: PendingRequest, key: str) -> None:
        self.scheduler.placed(item, self.views[key], self.now)
        self.views[key].in_flight += 1


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[PendingRequest], list[DeploymentView]]:
    """Requests in order of turns, and deployments with all that may keep one from the other."""
    keys = [f"d{n}" for n in range(draw(st.sampled_from([2, 5, 1, 3, 5, 0])))]
    views = [_drawn_view(draw, key) for key in keys]
    return [_drawn_request(draw, n, keys) for n in range(draw(st.integers(0, 10)))], views


def _drawn_view(draw: st.DrawFn, key: str) -> DeploymentView:
    slots = draw(st.sampled_from([2, 1, 4, 0]))
    return DeploymentView(
        key,
        "agent",
        "m",
        frozenset(draw(st.sampled_from([ROUTES, ("any",), ROUTES[:1], ROUTES[1:], ()]))),
        slots,
        draw(st.sampled_from([0, 0, 1, 3])),
        usable=draw(st.integers(0, 9)) < 9,
        cap=draw(st.sampled_from([NO_CAP, NO_CAP, NO_CAP, 0, 1, 2])),
        trial=draw(st.integers(0, 9)) == 9,
        version=draw(st.sampled_from(["v1", "v1", "v2"])),
        continues=dict.fromkeys(draw(st.sets(st.sampled_from(ROUTES), max_size=2)), "prompt"),
        device=draw(st.sampled_from([H100, L4, "a thing of which nobody heard"])),
        kv_free_tokens=draw(st.sampled_from([None, None, 0, 800, 5000])),
        loaded=draw(st.booleans()),
        health_factor=draw(st.sampled_from([1.0, 0.25])),
        labels=draw(st.sampled_from(LABELS)),
        translated=frozenset(draw(st.sampled_from([(), (), ROUTES[:1], ROUTES]))),
    )


def _drawn_request(draw: st.DrawFn, number: int, keys: list[str]) -> PendingRequest:
    avoid = draw(st.sets(st.sampled_from(keys), max_size=2)) if keys else set()
    blocks = draw(st.integers(0, 4))
    return PendingRequest(
        number,
        draw(st.sampled_from(ROUTES)),
        100.0,
        0.0,
        avoid=frozenset(avoid),
        version=draw(st.sampled_from([None, None, None, "v1", "v2"])),
        continuing=draw(st.integers(0, 4)) == 4,
        session_key=draw(st.sampled_from([None, "s", "t"])),
        input_tokens=draw(st.sampled_from([0, 10, 600, 4000])),
        output_tokens=draw(st.sampled_from([0, 1, 300])),
        prefix=tuple(range(blocks)),
        ttft_s=draw(st.sampled_from([None, 0.5])),
        where=draw(st.sampled_from(WHERES)),
    )
