"""What spans say of a request, whoever sent it: a client, a job, a parent gateway. Never content."""

from typing import Protocol

from gateway.domain.request import Request
from shared.process.tracing import conventions as names
from shared.process.tracing.spans import Attribute
from shared.protocol.messages import Trailers


class AnsweredRequest(Protocol):
    """What is known of an answer, such as :class:`gateway.dispatch.response.EngineResponse`."""

    @property
    def agent(self) -> str: ...
    @property
    def queue_s(self) -> float: ...
    @property
    def trailers(self) -> Trailers | None: ...


def request_attributes(
    request: Request, operation: str, model: str, response: AnsweredRequest | None
) -> dict[str, Attribute]:
    """What was asked for, under the name ``model``, and what it took."""
    found: dict[str, Attribute] = {
        names.OPERATION_NAME: operation,
        names.PROVIDER_NAME: names.PROVIDER,
        names.REQUEST_MODEL: model,
        names.REQUEST_STREAM: request.streaming,
        names.TIER: str(request.tier),
        names.ATTEMPTS: len(request.attempts),
    }
    if request.most_tokens is not None:
        found[names.REQUEST_MAX_TOKENS] = request.most_tokens
    if request.choices != 1:
        found[names.REQUEST_CHOICE_COUNT] = request.choices
    if request.gpu_s:
        found[names.GPU_S] = request.gpu_s
    if response is not None:
        found |= {names.RESPONSE_MODEL: request.model, names.AGENT: response.agent}
        found |= {names.QUEUE_S: response.queue_s, **usage_attributes(response.trailers)}
    return found


def usage_attributes(trailers: Trailers | None) -> dict[str, Attribute]:
    """Tokens as the engine counted them."""
    usage = None if trailers is None else trailers.usage
    if usage is None:
        return {}
    return {
        names.USAGE_INPUT_TOKENS: usage.prompt_tokens,
        names.USAGE_OUTPUT_TOKENS: usage.completion_tokens,
        names.USAGE_CACHE_READ_INPUT_TOKENS: usage.cached_tokens,
    }
