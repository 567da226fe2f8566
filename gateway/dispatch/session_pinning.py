"""Keeps requests that belong together at one agent (``x-trunkline-session``, stateful engines).

It concerns the engines' own paths alone, under ``/engines/…``: what a request there leaves behind, another
one asks for. On the built-in routes a session's name is a hint for the policy, and any deployment gives the
answer."""

from msgspec import structs

from gateway.dispatch.admission import Admission
from gateway.domain.request import Request
from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex
from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.policies.affinity import SessionAffinity, pin_of
from shared.protocol.routes import Route

PROMPTS = frozenset(("/prompt", "/api/prompt"))
"""Where ComfyUI takes prompts, below ``/engines/{model}``."""


class SessionPinning:
    """One for a dispatcher. Belongs to the event loop's thread."""

    def __init__(self, index: ModelIndex, admission: Admission) -> None:
        self._index = index
        self._admission = admission
        self._affinity = SessionAffinity()

    def bind(self, request: Request, now: float) -> None:
        """Have ``request``, for an engine's own paths, go where its session is, or begin the session with it.

        An agent that went away is waited for as long as requests wait for a model that went: it may be back
        at once, with all that the session left there. Then the session goes on elsewhere."""
        self._aim(request)
        if request.agent is not None:
            return
        principal = request.principal
        pin = pin_of(request.model, principal.tenant, principal.key_id, request.session_key)
        suiting, agent = self._suiting(request), self._affinity.agent_of(pin)
        if agent is None and request.session_key is None and not any(each.stateful for each in suiting):
            return
        request.session_pin = pin
        there = any(each.agent == agent for each in suiting)
        if agent is not None and (there or now < self._admission.wait_ends_there_at(request.model, now)):
            request.agent = agent
        else:
            request.agent = self._affinity.choose(pin, suiting)

    def _aim(self, request: Request) -> None:
        """A prompt for ComfyUI's own path waits for a slot for prompts, where its model has such."""
        prompted = request.method == "POST" and request.path in PROMPTS
        if prompted and Route.WORKFLOWS in self._index.routes(request.model):
            request.need = Route.WORKFLOWS.value

    def move(self, request: Request) -> bool:
        """The agent of its session does not come back: the session goes on elsewhere. False when the request
        has no session, or there is nowhere to go; nothing is changed then."""
        if request.session_pin is None:
            return False
        former, request.agent = request.agent, None
        suiting = self._suiting(request)
        if not suiting:
            request.agent = former
            return False
        request.agent = self._affinity.choose(request.session_pin, suiting)
        return True

    def placed(self, request: Request, deployment: Deployment) -> None:
        """A request whose session had no place yet went to ``deployment``: the session begins there."""
        if request.session_pin is not None and request.agent is None:
            request.agent = self._affinity.choose(request.session_pin, [deployment])

    def _suiting(self, request: Request) -> list[Deployment]:
        fit = structs.replace(DeploymentConstraints.of(request), agent=None)
        return [each for each in self._index.serving(request.model) if each.suits(fit)]
