"""Time budgets, attempts and what is kept for those whose engine is lost."""

from dataclasses import dataclass

from shared.protocol.limits import MIB


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """How long what may take, and how often something is tried."""

    max_attempts: int = 3
    """Engines that may fail on one request in a row, without an answer getting further."""
    first_byte_s: float = 600.0
    """From the stream's opening to the response's head. Unary answers have no head before they are done."""
    idle_s: float = 300.0
    """Longest silence in a response whose reader keeps up."""
    total_s: float = 3600.0
    """From the request's first stream to the response's end."""
    reconnect_grace_s: float = 5.0
    """How long requests are held for a model whose last deployment went away (agents redial at once)."""
    rest_s: float = 0.1
    """How long a deployment is left alone after it refused a request or its engine could not be reached;
    twice as long for each further failure in a row."""
    rest_max_s: float = 5.0
    slow_start_s: float = 30.0
    """How long the slots of a new or recovered deployment ramp up; 0 for not at all."""
    retry_share: float = 0.2
    """Retries, as a share of requests; ten a second are always allowed."""
    hedge_share: float = 0.02
    """Second copies of late requests, as a share of requests; 0 for none."""
    failover_after_s: float = 3.0
    """A request whose answer has not begun is given to another deployment when its agent's tunnel has been
    gone for so long."""
    continue_after_s: float = 5.0
    """An answer that has begun goes on at another deployment, if it can, when its agent's tunnel has been
    gone for so long. Longer than above: what the lost engine has done is paid for once more."""
    stall_s: float = 10.0
    """Shortest silence in the middle of an answer that is called a stall."""
    record_bytes: int = MIB
    """How much of each streamed answer is recorded until it is complete, so that it can continue
    elsewhere."""
    records_total_bytes: int = 64 * MIB
    """The same for all answers together. Answers without room in it cannot continue elsewhere."""
    unread_bytes: int = 256 * MIB
    """Memory for what clients have not read of their answers (:mod:`gateway.dispatch.response_buffers`): a
    tenant may hold half of what the others leave, a key half of what its tenant may. 0: none."""
    least_read_bytes_s: float = 65_536.0
    """Whoever reads less while an engine waits for it, and others wait for the engine, loses its answer; 0:
    nobody does."""
    held_up_s: float = 30.0
    """For so long an answer whose engine waits for its reader may keep others waiting, at any rate; 0: for
    ever."""
    reserved_share: float = 0.1
    """The share of a model's slots, rounded down, that realtime requests get at once: other requests that use
    them are preempted. 0 for none."""
    preempt_batch: bool = True
    """Whether batch requests that run give way to realtime ones that wait."""
    preempt_standard: bool = False
    """Whether standard ones do."""
    preempt_after_s: float = 0.5
    """A realtime request that would wait for less than this preempts nothing."""
    max_preemptions: int = 2
    """So often one request gives way at most."""
