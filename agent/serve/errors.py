"""What can go wrong with a request to a model of your own, beside the errors that other engines have as
well."""

from agent.engines.torch.errors import ComputationFailed, OutOfMemory
from agent.serve.messages import ModelFault
from shared.process.request_errors import RequestError


class NotReady(RequestError):
    """No process of the model can compute, and none will soon."""

    status, type, code = 503, "server_error", "model_not_ready"


class ComputationTooLong(RequestError):
    """A hook did not return within the model's ``timeout_s``."""

    status, type, code = 504, "server_error", "computation_timeout"


def request_error_of(fault: ModelFault) -> RequestError:
    """What a client is told. Of what the model raises only the kind; the engine's log has the rest."""
    words = fault.words[:1].upper() + fault.words[1:]
    if fault.kind == "refused":
        error = RequestError(fault.words, param=fault.param, code=fault.code)
        error.status, error.type = fault.status, fault.type
        return error
    if fault.kind == "memory":
        return OutOfMemory(f"The engine ran out of memory on this request: {fault.words}.")
    if fault.kind == "late":
        return ComputationTooLong(f"{words}. Its process was started again.")
    if fault.kind == "unready":
        return NotReady(f"The model cannot compute now: {fault.words}")
    if fault.kind == "crashed":
        return ComputationFailed(f"The model's process ended while it worked on this request: {fault.words}")
    if fault.kind == "slow":
        return ComputationFailed(f"{words}.")
    return ComputationFailed(f"{words}; the engine's log says why.")
