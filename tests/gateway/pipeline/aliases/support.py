"""A fleet with versions, a book of aliases, and engines that do as the test says."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from gateway.domain.aliases import Alias, AliasMirror
from gateway.domain.request import Request, RequestBody
from gateway.pipeline.aliases import AliasCache, AliasFigures, AliasResolver
from gateway.pipeline.aliases.target_choice import TargetChoice
from gateway.storage import AliasRecord
from shared.protocol.messages import DeploymentState, DeploymentStatus
from tests.gateway.api.support import FakeResponse, json_response
from tests.gateway.fleet.fleet import Fleet

JSON_TYPE = ("content-type", "application/json")


def served(
    model: str,
    version: str = "",
    slots: int = 1,
    *,
    routes: tuple[str, ...] = ("chat",),
    loadable: bool = False,
) -> DeploymentState:
    """A deployment of one version of a model; ``loadable``: that is not loaded and could be."""
    return DeploymentState(
        f"d-{model}-{version}",
        model,
        version=version,
        routes=routes,
        slots=slots,
        status=DeploymentStatus.LOADABLE if loadable else DeploymentStatus.LOADED,
        managed=loadable,
    )


class Book(AliasCache):
    """A book without a store."""

    def __init__(self, *aliases: Alias) -> None:
        self.write(*aliases)

    def write(self, *aliases: Alias) -> None:
        """From now on these."""
        records = {each.name: AliasRecord(each, 7.0, 7.0) for each in aliases}
        self._set(0, records, {each.name: TargetChoice(each) for each in aliases})


@dataclass
class Offers:
    """Keeps what a shadow was offered."""

    offered: list[tuple[AliasMirror, Request, str]] = field(default_factory=list)

    def offer(self, mirror: AliasMirror, request: Request, key: str) -> None:
        self.offered.append((mirror, request, key))


class Desk:
    """The stages from names to engines, the latter faked: ``run`` takes every request and answers or raises
    what ``troubles`` has for its model."""

    def __init__(self, *aliases: Alias) -> None:
        self.fleet = Fleet()
        self.book = Book(*aliases)
        self.offers = Offers()
        self.registry = CollectorRegistry()
        self.figures = AliasFigures(self.registry)
        index = self.fleet.registry.index
        self.versions = AliasResolver(
            self.book, index, self.offers, self.figures, self.fleet.loop.time, grace_s=5.0
        )
        self.asked: list[Request] = []
        self.troubles: dict[str, Exception] = {}
        self.answers: Callable[[Request], Awaitable[FakeResponse]] | None = None

    def load_on_demand(self) -> None:
        """What could be loaded counts."""
        self.fleet.registry.index.watch_loading(lambda deployment, before: None)

    def serve(self, *deployments: DeploymentState) -> None:
        """Have agents, one for each."""
        for each in deployments:
            self.fleet.connect(f"agent-{each.id}", each)

    def request(self, model: str, **more: object) -> Request:
        """A request as it is classified."""
        body = b'{"model":"%s"}' % model.encode()
        asked = self.fleet.request(model, body=RequestBody(body, None, len(body)), streaming=False)
        asked.headers = (JSON_TYPE, ("content-length", str(len(body))))
        for name, value in more.items():
            setattr(asked, name, value)
        asked.need = asked.route
        return asked

    async def run(self, request: Request) -> FakeResponse:
        self.asked.append(request)
        if request.model in self.troubles:
            raise self.troubles[request.model]
        response = json_response()
        response.version = request.version or ""
        return response

    def count(self, name: str, **labels: str) -> float:
        """A counter's value, 0 if there is none."""
        return self.registry.get_sample_value(name, labels) or 0.0
