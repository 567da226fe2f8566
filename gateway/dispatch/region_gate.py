"""Keeps requests from regions that they are not to use now, before the policy chooses among deployments.

What decides is pure (:mod:`gateway.scheduling.regions.choice`); here it is asked for those who wait, with
what the index knows and how each region stands (:mod:`gateway.dispatch.region_watch`). Any policy gets
deployments of barred regions as ones to avoid. Belongs to the event loop's thread.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.dispatch.region_watch import LOOK_S, MOST_REGIONS, RegionWatch
from gateway.domain.request import Tier
from gateway.domain.residency import Residency
from gateway.domain.timers import Timers
from gateway.fleet.deployment import Deployment
from gateway.fleet.registry import Registry
from gateway.observability.gauges import Family
from gateway.scheduling.base import DeploymentConstraints, DeploymentView
from gateway.scheduling.queue.tickets import Ticket
from gateway.scheduling.queue.waiting_room import WaitingRoom
from gateway.scheduling.recent import RecentDict
from gateway.scheduling.regions.choice import RegionChoice, RegionOffer, Waiting, choose, is_nearer
from gateway.scheduling.regions.settings import NeverRegions, RegionSettings, draw
from gateway.scheduling.regions.standing import RegionStanding, Standing

ENOUGH_FREE = 64
"""With so many free slots a region has room, whatever else it has: a round seldom places more."""

MOST_MODELS = 4096
"""Of which it is remembered where they were served."""

MOST_CHOICES = 16_384
"""Requests of which it is remembered why regions were barred to them."""


@dataclass(slots=True)
class _Served:
    """What serves one model, by region."""

    views: dict[str, list[Deployment]] = field(default_factory=dict)
    rtts_s: dict[str, float] = field(default_factory=dict)
    """To the nearest of each region, as last measured when anything of the model changed."""
    keys: dict[frozenset[str], frozenset[str]] = field(default_factory=dict)
    """Regions → the keys of their deployments."""

    def keys_of(self, regions: Iterable[str]) -> frozenset[str]:
        wanted = frozenset(regions)
        found = self.keys.get(wanted)
        if found is None:
            found = self.keys[wanted] = frozenset(
                each.key for region in wanted for each in self.views.get(region, ())
            )
        return found


class RegionGate:
    """One for a dispatcher."""

    def __init__(
        self,
        settings: RegionSettings,
        registry: Registry,
        room: WaitingRoom,
        timers: Timers,
        mark: Callable[[str], None],
    ) -> None:
        """``mark`` has those looked at who wait for a model."""
        self.settings = settings
        self.watch = RegionWatch(settings, registry, timers, self._look_at_all)
        self.region_of = self.watch.region_of
        """The region of a deployment."""
        self._never = NeverRegions(settings)
        self._index = registry.index
        self._room = room
        self._mark = mark
        self._served: dict[str, _Served] = {}
        """By model, as long as it is true."""
        self._choices = RecentDict[int, RegionChoice](MOST_CHOICES)
        """By ticket's number, the latest."""
        self._requests = Tally[tuple[str, str]]()
        self._seen = RecentDict[str, dict[str, float]](MOST_MODELS)
        """By model: the regions that served it, and their round trips then."""
        self._index.subscribe(self._changed)

    def retune(self, settings: RegionSettings) -> None:
        """Prices, shifts and times from now on, for what waits, too. The label stays."""
        self.settings, self._never = settings, NeverRegions(settings)
        self.watch.retune(settings)
        self._look_at_all()

    def close(self) -> None:
        """Follows regions no more."""
        self.watch.close()

    def constrained(self, where: Residency | None) -> Residency | None:
        """Where a request may run that may run at ``where``: not in regions that cost infinitely."""
        return self._never.constrained(where)

    def gate(self, model: str, tickets: Sequence[Ticket], now: float) -> tuple["GatedTickets", float | None]:
        """Of tickets in order of turns those that may go somewhere now, each with the deployments it must not
        go to; and when to ask again though nothing has changed."""
        served, gated = self._serving(model), GatedTickets()
        offers_of: dict[DeploymentConstraints, list[RegionOffer]] = {}
        look_at_s: float | None = None
        waiting = {False: self._room.ahead_of_batch(model), True: self._room.depth(model)}
        for ticket in tickets:
            lane = ticket.lane
            if lane.agent is not None:
                gated.let(ticket, frozenset())
                continue
            offers = offers_of.get(lane)
            if offers is None:
                offers = offers_of[lane] = list(self._offers(served, lane, now))
            if not offers:
                gated.let(ticket, frozenset())
                continue
            batch = ticket.request.tier is Tier.BATCH
            behind = max(0, waiting[batch] - 1)
            tokens = ticket.request.input_tokens + ticket.request.output_tokens
            offers = [each.for_context(tokens) for each in offers]
            choice = choose(offers, self._waiting(ticket, offers, behind, now), self.settings, now)
            if self.watch.away and self._nearer_lost(model, lane, choice, offers):
                choice = replace(choice, nearer_lost=True)
            self._choices[ticket.number] = choice
            if choice.look_in_s is not None:
                at_s = now + max(choice.look_in_s, LOOK_S)
                look_at_s = at_s if look_at_s is None else min(look_at_s, at_s)
            if any(each.region not in choice.barred and _open(each) for each in offers):
                gated.let(ticket, served.keys_of(choice.barred) if choice.barred else frozenset())
                waiting[True] -= 1
                waiting[False] -= not batch
        return gated, look_at_s

    def placed(self, number: int, chosen: Deployment) -> None:
        """The ticket of that number went there."""
        self._requests[self.region_of(chosen), self.reason(number, chosen) or "nearest"] += 1

    def reason(self, number: int, chosen: DeploymentView) -> str | None:
        """Why the request went to the region of ``chosen``; None: regions had no say in it."""
        choice = self._choices.get(number)
        return None if choice is None else choice.reason(self.region_of(chosen))

    def barred(self, number: int, view: DeploymentView) -> str | None:
        """Why the region of ``view`` was barred to the request; None: it was not."""
        choice = self._choices.get(number)
        code = None if choice is None else choice.barred.get(self.region_of(view))
        return None if code is None else f"region_{code}"

    def _nearer_lost(
        self, model: str, lane: DeploymentConstraints, choice: RegionChoice, offers: Sequence[RegionOffer]
    ) -> bool:
        """Whether a region that is away would have been taken before all that are there."""
        label, where = self.settings.label, lane.where
        lost = {
            region: rtt_s
            for region, rtt_s in self._seen.get(model, {}).items()
            if region in self.watch.away and (where is None or where.allows({label: region}))
        }
        return bool(lost) and is_nearer(lost, choice, offers, self.settings)

    def _waiting(self, ticket: Ticket, offers: Sequence[RegionOffer], behind: int, now: float) -> Waiting:
        request = ticket.request
        key = request.session_key or request.id
        shifted_to = None
        if self.settings.shifts:
            shifted_to = self.settings.shifted_to(request.model, request.principal.tenant, key)
        partly = [each.region for each in offers if each.share < 1.0]
        drawn = {region: draw(key, f"returning {region}") for region in partly}
        return Waiting(now - ticket.entered_s, behind, shifted_to, drawn)

    def _offers(self, served: _Served, lane: DeploymentConstraints, now: float) -> Iterator[RegionOffer]:
        """What each region has for requests of that fit, as far as it is not to be avoided. Of one with much
        room not all is looked at."""
        everywhere, avoid = lane.where is None and lane.version is None and not lane.continuing, lane.avoid
        for region, views in served.views.items():
            suiting, free = [], 0
            for each in views:
                if not each.usable or each.shut or each.key in avoid:
                    continue
                if (everywhere and lane.route in each.routes) or each.suits(lane):
                    suiting.append(each)
                    free += each.free
                    if free >= ENOUGH_FREE:
                        break
            if suiting:
                standing, rtt_s = self.watch.standings.get(region), served.rtts_s[region]
                if standing is None:
                    yield RegionOffer(region, rtt_s, free, views=suiting)
                else:
                    share = standing.share(now)
                    yield RegionOffer(region, rtt_s, free, standing.standing, share, suiting)

    def _serving(self, model: str) -> _Served:
        served = self._served.get(model)
        if served is None:
            served = self._served[model] = _Served()
            for each in self._index.serving(model):
                served.views.setdefault(self.region_of(each), []).append(each)
            served.rtts_s = {
                region: min(each.rtt_s for each in views) for region, views in served.views.items()
            }
            seen = self._seen.renewed(model, dict)
            if len(seen) < MOST_REGIONS:
                seen.update(served.rtts_s)
        return served

    def _changed(self, model: str) -> None:
        self._served.pop(model, None)

    def _look_at_all(self) -> None:
        for model in self._room.depths():
            self._mark(model)

    def figures(self) -> list[Family]:
        """For metrics."""
        return region_figures(self.watch.standings, self._requests, self.watch.failovers)


def region_figures(
    standings: Mapping[str, RegionStanding],
    requests: Mapping[tuple[str, str], int],
    failovers: Mapping[str, int],
) -> list[Family]:
    """What is counted of regions: how each stands, requests by region and reason, and losses."""
    states: dict[tuple[str, ...], float] = {
        (region, each.value): float(standing.standing is each)
        for region, standing in standings.items()
        for each in Standing
    }
    placed: dict[tuple[str, ...], float] = {key: float(count) for key, count in requests.items()}
    lost: dict[tuple[str, ...], float] = {(region,): float(count) for region, count in failovers.items()}
    why = "Requests given to deployments of a region, by why it was taken."
    return [
        Family("region_state", "Whether a region is in this state.", ["region", "state"], states),
        Family("region_requests", why, ["region", "reason"], placed, counter=True),
        Family("region_failovers", "How often a region was lost.", ["region"], lost, counter=True),
    ]


class GatedTickets:
    """Those of a round that may go somewhere now."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.avoid: dict[int, frozenset[str]] = {}
        """By ticket's number, where there are any: keys of deployments."""

    def let(self, ticket: Ticket, avoid: frozenset[str]) -> None:
        """``ticket`` may go where it is not to ``avoid``."""
        self.tickets.append(ticket)
        if avoid:
            self.avoid[ticket.number] = avoid


def _open(offer: RegionOffer) -> bool:
    """Whether a slot is free there; those of this round included that others were counted for, for the
    policy decides who gets them."""
    return any(view.free > 0 for view in offer.views)
