"""Deployments in groups, as the parent is offered them: pure, but for the deployments that are looked at."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.fleet.availability import ModelRecord
from gateway.fleet.deployment import Deployment
from shared.protocol.messages import DeploymentState, DeploymentStatus
from shared.protocol.routes import UPGRADE_NEED

MODEL_CHARS = 200
"""Of a model's name in a group's id; what tells groups apart follows it."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """What deployments that are offered as one have in common."""

    model: str
    version: str
    kind: str
    device: str
    labels: tuple[tuple[str, str], ...]
    via: tuple[str, ...]

    @classmethod
    def of(cls, deployment: Deployment) -> "GroupKey":
        return cls(
            deployment.model,
            deployment.version,
            deployment.kind,
            deployment.device,
            tuple(sorted(deployment.labels.items())),
            deployment.via,
        )

    @property
    def id(self) -> str:
        """The same for equal keys, also after a restart, so that a parent knows the group again."""
        cut = self.model[MODEL_CHARS:]
        facts = (self.version, self.kind, self.device, self.labels, self.via, *([cut] if cut else []))
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:8]
        return f"{self.model[:MODEL_CHARS]}/{digest}"


@dataclass(slots=True)
class OfferedGroup:
    """Deployments that are offered as one."""

    key: GroupKey
    state: DeploymentState
    members: list[Deployment] = field(default_factory=list)
    """Those that are loaded."""
    out: list[Deployment] = field(default_factory=list)
    """Those that agents would load, or are loading."""
    copy: DeploymentState | None = None
    """Where something is loaded, and agents would load one more: what is offered of that."""
    running: int = 0
    """Requests of the parent, from OPEN on."""
    opening: int = 0
    """Those of them that have no slot yet, because their bodies are still coming."""

    @property
    def limit(self) -> int:
        """How many requests of the parent there may be."""
        free = sum(deployment.free for deployment in self.members)
        return self.running + max(0, free - self.opening)


def grouped(
    record: ModelRecord | None, suits: Callable[[Deployment], bool]
) -> dict[GroupKey, tuple[list[Deployment], list[Deployment]]]:
    """A model's deployments in groups: of each those that are loaded, and those that could be."""
    found: dict[GroupKey, tuple[list[Deployment], list[Deployment]]] = {}
    if record is not None:
        for place, deployments in enumerate((_serving(record), _loadable(record))):
            for deployment in filter(suits, deployments):
                found.setdefault(GroupKey.of(deployment), ([], []))[place].append(deployment)
    return found


def state_of(
    key: GroupKey,
    loaded: list[Deployment],
    out: list[Deployment],
    own_id: str,
    labels: Mapping[str, str],
) -> DeploymentState:
    """What is said of a group of these deployments, but for what runs there. ``labels`` count for agents
    that do not have them."""
    members = loaded or out
    contexts = [each.most_tokens for each in members]
    known = [each for each in contexts if each is not None]
    lacks = frozenset.union(*(each.lacks for each in members))
    state = DeploymentState(
        id=key.id,
        model=key.model,
        version=key.version,
        status=DeploymentStatus.LOADED,
        routes=tuple(sorted(frozenset.intersection(*(each.routes for each in members)))),
        slots=sum(each.slots for each in members),
        context_tokens=min(known) if len(known) == len(contexts) else None,
        kind=key.kind,
        continues=_common(each.continues for each in members),
        lacks=tuple(sorted(lacks - {UPGRADE_NEED})),
        translated=tuple(sorted(frozenset.intersection(*(each.translated for each in members)))),
        capabilities=_said_by_all([each.capabilities for each in members]),
        work=next((each.work_scale for each in members if each.work_scale is not None), None),
        stateful=any(each.stateful for each in members),
        device=key.device,
        via=(own_id, *key.via),
        labels={**labels, **dict(key.labels)},
        managed=bool(out) or any(each.managed for each in loaded),
        upgrades=UPGRADE_NEED not in lacks,
    )
    return state if loaded else _while_out(state, out)


def copy_of(
    state: DeploymentState, loaded: list[Deployment], out: list[Deployment]
) -> DeploymentState | None:
    """What is said of one more copy of a group with this state, of which something is loaded; None: no agent
    would load one. Once one more is loaded, the next copy is another deployment with another id."""
    spare = [each for each in out if each.status is not DeploymentStatus.LOADED]
    if not (loaded and spare):
        return None
    return _while_out(replace(state, id=f"{state.id}+{len(loaded)}"), spare)


def _serving(record: ModelRecord) -> list[Deployment]:
    """Those that are loaded."""
    return [
        each
        for each in record.serving.values()
        if each.status is DeploymentStatus.LOADED and each.routes and not each.closing
    ]


def _loadable(record: ModelRecord) -> list[Deployment]:
    """Those that agents would load, or are loading, or unload for another."""
    return [
        each
        for each in record.managed.values()
        if each.session.takes_work
        and each.routes
        and (each.status is not DeploymentStatus.LOADED or each.closing)
    ]


def _while_out(state: DeploymentState, out: list[Deployment]) -> DeploymentState:
    """What is said of a group of which nothing is loaded."""
    statuses = {each.status for each in out}
    loading = [each for each in out if each.status is DeploymentStatus.LOADING]
    failed = statuses == {DeploymentStatus.FAILED}
    progress = [each.load_progress for each in loading if each.load_progress is not None]
    status = DeploymentStatus.FAILED if failed else DeploymentStatus.LOADABLE
    return replace(
        state,
        status=DeploymentStatus.LOADING if loading else status,
        slots=max(each.promised_slots for each in out),
        load_s=min((each.reload_s for each in out if each.reload_s is not None), default=None),
        load_progress=max(progress, default=None),
        reason=out[0].reason if failed else "",
    )


def _said_by_all(said: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The capabilities that all of them have, in the order of the first."""
    return tuple(word for word in said[0] if all(word in each for each in said))


def _common(ways: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """What all of them say."""
    return dict(set.intersection(*(set(each.items()) for each in ways)))
