"""What this gateway offers its parent: its deployments in groups, and the slots of each that are free now.

A slot is either taken by a client of this gateway, or taken by the parent, or free; only free ones are lent.
So what is lent and what is taken here together never exceed what the agents grant.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import structlog

from gateway.domain.errors import NoSlotFree, RequestDeclined
from gateway.domain.residency import Residency
from gateway.domain.timers import Timers
from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex
from gateway.scheduling.base import DeploymentConstraints
from gateway.uplink.groups import OfferedGroup, copy_of, grouped, state_of
from gateway.uplink.load_wishes import LoadWishes, ModelLoads, NoLoads
from gateway.uplink.parent_demand import UplinkSlots
from shared.protocol import limits
from shared.protocol.messages import (
    AgentState,
    AgentStatus,
    Command,
    CommandResult,
    CommandVerb,
    DeploymentState,
    DeploymentStatus,
    GpuState,
    state_within,
)

_log = structlog.get_logger(__name__)

STATE_BYTES = limits.CONTROL_PAYLOAD_BYTES - limits.FRAME_HEADER_BYTES

NOTHING_SERVED = "no agent of this gateway serves a model now"


@dataclass(slots=True, eq=False)
class UplinkSlot:
    """A place that a request of the parent has. To be given back with :meth:`UplinkCapacity.leave`, once."""

    session: Hashable
    group: OfferedGroup
    lent: bool
    """It is one of those that are divided among the parent's processes."""
    opening: bool = True


class UplinkCapacity:
    """Implements :class:`shared.link.publisher.PublishedCapacity`. Belongs to the event loop's thread."""

    def __init__(
        self,
        index: ModelIndex,
        waiting: Callable[[str], int],
        own_id: Callable[[], str],
        parents: Callable[[], Iterable[str]],
        timers: Timers,
        labels: Mapping[str, str] = MappingProxyType({}),
        loads: ModelLoads | None = None,
        parent_waits: Callable[[str], None] = lambda model: None,
    ) -> None:
        """``waiting`` says how many requests wait here for a model; ``parents`` are the parent's ids;
        ``labels`` count for agents that do not have them; ``loads`` has models loaded, None: nothing
        does; ``parent_waits`` is told models of which more or less waits at the parent now."""
        self._index = index
        self._waiting = waiting
        self._own_id = own_id
        self._parents = parents
        self._labels = labels
        self._wishes = LoadWishes(loads or NoLoads(), timers.time)
        self._groups: dict[str, OfferedGroup] = {}
        self._by_model: dict[str, list[OfferedGroup]] = {}
        self._copies: dict[str, OfferedGroup] = {}
        """By the id of one more copy of what is loaded."""
        self._dirty: dict[str, None] = dict.fromkeys(index.models)
        """Models whose groups must be put together anew."""
        self._running: Counter[tuple[Hashable, str]] = Counter()
        self._draining = False
        self._cut = False
        self.moves = 0
        self.on_change: Callable[[], None] = lambda: None
        self.on_levels: Callable[[], None] = lambda: None
        self.slots = UplinkSlots(
            timers.time,
            lambda: self.on_levels(),
            lambda delay_s, call: timers.call_at(timers.time() + delay_s, call),
            parent_waits,
        )
        """Divides the slots among the parent's processes, if it has several, and knows what waits there."""
        index.subscribe(self._changed)
        index.subscribe_slots(self._levels_changed)
        index.watch_taken(self._levels_changed)

    @property
    def running(self) -> int:
        """Requests of the parent."""
        return sum(self._running.values())

    def drain(self) -> None:
        """From now on no request is let in."""
        self._draining = True
        self.on_change()

    # --- Requests

    def enter(self, session: Hashable, group_id: str) -> UplinkSlot:
        """A request of ``session`` has come for a group. Raises NoSlotFree, and RequestDeclined for a group
        that nothing serves any more."""
        self._settle()
        group = self._groups.get(group_id)
        if group is not None:
            self.slots.came(session, group.key.model)
        if self._draining:
            raise NoSlotFree("this gateway is draining")
        if group is None or not (group.members or group.out):
            model = "that model" if group is None else repr(group.key.model)
            raise RequestDeclined(f"No agent of the gateway that was asked serves {model} any more.")
        if not group.members:
            raise NoSlotFree("the model is not loaded now")
        self._follow(group)
        if group.limit <= group.running or self._waiting(group.key.model):
            raise NoSlotFree("all slots are taken")
        lent = session in self.slots
        if lent and not self.slots.enter(session, group_id):
            raise NoSlotFree("the parent's process has no slot left: its level was lowered")
        group.running += 1
        group.opening += 1
        self._running[session, group_id] += 1
        self.moves += 1
        self.on_levels()
        return UplinkSlot(session, group, lent)

    def opened(self, slot: UplinkSlot) -> None:
        """Its body is here, and it is given to an agent now. Idempotent."""
        slot.group.opening -= slot.opening
        slot.opening = False

    def leave(self, slot: UplinkSlot) -> None:
        """It is over, and the slot that it had at an agent is free, or will be as soon as that says so."""
        self.opened(slot)
        group, running = slot.group, (slot.session, slot.group.key.id)
        group.running -= 1
        self._running[running] -= 1
        if not self._running[running]:
            del self._running[running]
        if slot.lent:
            self.slots.leave(slot.session, group.key.id)
        if not (group.members or group.out or group.running):
            self._dirty[group.key.model] = None
        self.moves += 1
        self._levels_changed(group.key.model)

    # --- What the parent wants loaded

    def carry_out(self, command: Command) -> CommandResult:
        """Begins to have a model loaded, or says why not. STATE says what becomes of it."""
        why_not = self._why_not(command)
        return CommandResult(command.id, why_not is None, why_not or "")

    def _why_not(self, command: Command) -> str | None:
        self._settle()
        offered, copy = command.deployment, command.deployment in self._copies
        group = self._copies.get(offered) or self._groups.get(offered)
        if group is None or not (group.members or group.out):
            return "this gateway has no such deployment any more"
        if self._draining:
            return "this gateway is draining"
        is_loaded = bool(group.members) and not copy
        if command.verb is CommandVerb.LOAD:
            if not is_loaded:
                self._wishes.begin(offered, group.key.model, self._fit(group), copy=copy)
                self.on_change()
            return None
        if is_loaded or not self._wishes.wanted(offered):
            return "a gateway decides itself what its agents unload"
        self._wishes.end(offered)
        self.on_change()
        return None

    def _fit(self, group: OfferedGroup) -> DeploymentConstraints:
        """What only deployments of the group suit, as far as requests can say it."""
        names = {name for each in self._by_model[group.key.model] for name, _ in each.key.labels}
        labels = dict(group.key.labels)
        where = Residency(tuple((name, frozenset((labels.get(name),))) for name in sorted(names)))
        need = min(group.out[0].routes)
        return DeploymentConstraints(need, version=group.key.version, where=where if names else None)

    # --- PublishedCapacity

    def observe(self) -> None:
        """Repeats what the parent wants loaded."""

        def is_loading(key: str) -> bool:
            group = self._copies.get(key) or self._groups.get(key)
            state = None if group is None else group.copy if key in self._copies else group.state
            return state is not None and state.status is DeploymentStatus.LOADING

        if self._wishes.look(is_loading):
            self.on_change()

    def state(self, gpus: tuple[GpuState, ...] = ()) -> AgentState:
        self._settle()
        loaded = [group for group in self._groups.values() if group.members]
        out = [group for group in self._groups.values() if group.out and not group.members]
        states = [self._described(group) for group in (*loaded, *out)]
        states += [self._out_described(group.copy) for group in loaded if group.copy is not None]
        state = AgentState(
            AgentStatus.DRAINING if self._draining else AgentStatus.READY,
            tuple(states[: limits.DEPLOYMENTS]),
            reason="" if states else NOTHING_SERVED,
        )
        state = state_within(state, STATE_BYTES)
        if len(state.deployments) < len(states) and not self._cut:
            self._cut = True
            left_out = states[len(state.deployments)].model
            _log.warning("uplink_offers_too_many", offered=len(state.deployments), first_left_out=left_out)
        return state

    def levels(self, session: Hashable) -> Mapping[str, int]:
        self._settle()
        offered = ((key, group) for key, group in self._groups.items() if group.members or group.out)
        return {key: self._level(session, group) for key, group in offered}

    def _level(self, session: Hashable, group: OfferedGroup) -> int:
        if self._draining:
            return 0
        key = group.key.id
        if self._waiting(group.key.model):
            return self._running[session, key]
        if session not in self.slots:
            return self._running[session, key] + group.limit - group.running
        self._follow(group)
        return max(0, self._running[session, key] + self.slots.spare(session, key))

    # --- What the fleet says

    def _changed(self, model: str) -> None:
        self._dirty[model] = None
        self.on_change()

    def _settle(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for model in dirty:
            self._regroup(model)

    def _levels_changed(self, model: str) -> None:
        groups = self._by_model.get(model)
        if groups:
            for group in groups:
                self._follow(group)
            self.on_levels()

    def _follow(self, group: OfferedGroup) -> None:
        if len(self.slots):
            self.slots.set_limit(group.key.id, group.limit)

    def _regroup(self, model: str) -> None:
        """Put together anew what serves ``model``. A group without members stays while requests run there."""
        found = grouped(self._index.models.get(model), self._may_go_up)
        before = {group.key: group for group in self._by_model.get(model, ())}
        groups = [each for key, each in before.items() if key in found or each.running]
        for key, (members, out) in found.items():
            if (group := before.get(key)) is None:
                group = OfferedGroup(key, DeploymentState(key.id, model, key.version))
                groups.append(group)
            group.members, group.out = members, out
            group.state = state_of(key, members, out, self._own_id(), self._labels)
            if members:
                self._wishes.end(key.id)
        for group in groups:
            if group.key not in found:
                group.members, group.out = [], []
            self._offer_copy(group)
        for key in before.keys() - {group.key for group in groups}:
            self._groups.pop(key.id, None)
            self._wishes.end(key.id)
            self._withdraw_copy(before[key])
            self.slots.withdraw(key.id)
        self._groups |= {group.key.id: group for group in groups}
        if groups:
            self._by_model[model] = groups
        else:
            self._by_model.pop(model, None)
        for group in groups:
            self.slots.offer(group.key.id, [model], group.limit)

    def _offer_copy(self, group: OfferedGroup) -> None:
        """What is offered of one more copy of what the group has loaded."""
        copy = copy_of(group.state, group.members, group.out)
        if group.copy is not None and (copy is None or copy.id != group.copy.id):
            self._withdraw_copy(group)
        group.copy = copy
        if copy is not None:
            self._copies[copy.id] = group

    def _withdraw_copy(self, group: OfferedGroup) -> None:
        if group.copy is not None:
            self._copies.pop(group.copy.id, None)
            self._wishes.end(group.copy.id)

    def _may_go_up(self, deployment: Deployment) -> bool:
        """Whether the parent is offered it: not what comes from the parent, and no path that is too long."""
        via, barred = deployment.via, {self._own_id(), *self._parents()}
        return len(via) < limits.HOPS and barred.isdisjoint(via)

    def _described(self, group: OfferedGroup) -> DeploymentState:
        state = group.state if group.members else self._out_described(group.state)
        return replace(
            state,
            running=sum(each.in_flight for each in group.members),
            waiting=self._waiting(group.key.model),
        )

    def _out_described(self, state: DeploymentState) -> DeploymentState:
        """The same of what is not loaded, and of what the parent wants of it."""
        if state.status is DeploymentStatus.LOADING:
            return state
        if self._wishes.wanted(state.id):
            return replace(state, status=DeploymentStatus.LOADING)
        if state.status is DeploymentStatus.LOADABLE and (why_not := self._wishes.why_failed(state.id)):
            return replace(state, status=DeploymentStatus.FAILED, reason=why_not[: limits.REASON_CHARS])
        return state
