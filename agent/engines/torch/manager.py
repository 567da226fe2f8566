"""transformers' continuous-batching manager, made to outlive the errors of single requests.

The library's manager streams, batches, pages its KV cache and shares prefixes. Four of its behaviours do not
suit an engine that must stay up. They are changed here, in the one place that knows its inside (transformers
5.23):

- an error in a step ends its thread and fails every request: here the step's likely cause alone is failed,
  and the others go on from where they were, by the manager's own means for requests that had to leave the
  cache;
- sampling settings are the same for all requests: see `sampling`;
- results of a cancelled request's handler are kept for ever: here one sink takes all results;
- an idle loop wakes ten times a second: here it sleeps until there is something to do.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.continuous_api import (
    BackgroundThreadStatus,
    ContinuousBatchingManager,
    ContinuousBatchProcessor,
    OutputRouter,
)
from transformers.generation.continuous_batching.requests import (
    GenerationOutput,
    RequestState,
    RequestStatus,
)

from agent.engines.torch.decoding import Decoder
from agent.engines.torch.errors import FAILURES_IN_A_ROW, is_out_of_memory
from agent.engines.torch.sampling import KEYWORD, PerRequestSampling, TextSampling

_log = logging.getLogger(__name__)

_STARVED_WAIT_S = 0.1
"""How long to wait when requests wait but none fits in the cache: what they wait for happens in this same
loop, so this is only met between the cancelling of the last running request and the next look."""


class Sink(Protocol):
    """Where results go, called on the event loop's thread."""

    def on_outputs(self, outputs: Sequence[GenerationOutput]) -> None:
        """One step's results."""

    def on_failure(self, request_id: str, error: BaseException) -> None:
        """A request was given up."""


class LoopRouter(OutputRouter):
    """Hands each step's results to an event loop as one call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sink: Sink) -> None:
        super().__init__()
        self._loop = loop
        self._sink = sink

    def deliver(self, output: GenerationOutput) -> None:
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        self.call(self._sink.on_outputs, outputs)

    def fail_and_deliver(self, state: RequestState, error: BaseException) -> None:
        state.status = RequestStatus.FAILED
        self.call(self._sink.on_failure, state.request_id, error)

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """On the loop's thread, unless the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


class ResilientManager(ContinuousBatchingManager):
    """A manager whose thread ends only when it is told to, or when every step fails."""

    def __init__(
        self, model: Any, generation_config: GenerationConfig, batching_config: ContinuousBatchingConfig
    ) -> None:
        super().__init__(model, generation_config, batching_config)
        self.logit_processor: Any = PerRequestSampling()
        self.kv_use = 0.0
        """Share of the KV cache that running requests need; written by the computing thread."""
        self.kv_tokens = 0
        """Tokens that the KV cache has room for."""
        self.workspace_tokens = 0
        """How many tokens a workspace may have room for (see `decoding`); 0: there is none."""
        self.steps = 0
        self.out_of_memory = 0
        """How many requests were given up for want of memory."""
        self.on_broken: Callable[[BaseException], None] = lambda error: None
        """Called on the event loop's thread when computing has ended without :meth:`halt`."""
        self.on_step: Callable[[int], None] = lambda requests: None
        """Called in the computing thread after each step, with how many requests were in it."""
        self._failed_steps = 0

    def deliver_to(self, loop: asyncio.AbstractEventLoop, sink: Sink) -> None:
        """Results go to ``sink`` from now on. To be called while nothing runs."""
        self.output_router = LoopRouter(loop, sink)
        if self.batch_processor is not None:
            self.batch_processor.output_router = self.output_router

    def add_request(self, *arguments: Any, **settings: Any) -> str | None:
        """As the library's, but silent when the thread has ended: it would log a part of the prompt."""
        if self.background_thread_status.can_accept_new_requests() is not None:
            return None
        return super().add_request(*arguments, **settings)

    def halt(self, timeout_s: float) -> bool:
        """Stop computing, failing what runs. Whether the thread ended within ``timeout_s``."""
        if self._generation_thread is None:
            return True
        self.background_thread_status.request_stop(BackgroundThreadStatus.HARD_STOP, 0)
        self._wake_up_loop.set()
        self._generation_thread.join(timeout_s)
        return not self._generation_thread.is_alive()

    def _create_batch_processor(self) -> ContinuousBatchProcessor:
        processor = super()._create_batch_processor()
        buffers = processor.inputs_and_outputs
        if self.workspace_tokens and Decoder.suits(buffers, self.model.config._attn_implementation):
            Decoder(buffers, self.workspace_tokens).install()
        return processor

    def _run_generation_loop(self) -> None:
        super()._run_generation_loop()
        error = self.background_thread_status.fatal_error
        if error is not None and isinstance(self.output_router, LoopRouter):
            self.output_router.call(self.on_broken, error)

    def _generation_loop_body(self, batch_processor: ContinuousBatchProcessor, bootstrapping: bool) -> bool:
        """One turn of the loop: a step, or a wait for work. Whether to go on."""
        if not batch_processor.scheduler.active_requests:
            # Set when requests had to leave the cache, and else cleared only by one that finishes, not by
            # cancels.
            batch_processor.scheduler.block_new_requests = False
        try:
            with torch.inference_mode():  # less is noted of each operation than where only gradients are off
                working = batch_processor.prepare_next_batch()
                if working:
                    batch_processor._generation_step(self.model)
        except Exception as error:
            self._isolate(batch_processor, error)
            return True
        if working:
            buffers: Any = batch_processor.inputs_and_outputs  # those of steps one after the other
            requests = len(buffers.requests_in_batch)
            batch_processor.update_batch()
            _keep_silent(each.state for each in buffers.requests_in_batch)
            self.on_step(requests)
            self._failed_steps = 0
            self.steps += 1
        self._observe(batch_processor)
        return working or self._wait(batch_processor)

    def _wait(self, batch_processor: ContinuousBatchProcessor) -> bool:
        if self.background_thread_status.local_status != BackgroundThreadStatus.DONT_STOP:
            return False
        self._wake_up_loop.wait(_STARVED_WAIT_S if batch_processor.has_pending_requests() else None)
        self._wake_up_loop.clear()
        return True

    def _observe(self, batch_processor: ContinuousBatchProcessor) -> None:
        needed = sum(state.current_len() for state in batch_processor.scheduler.active_requests.values())
        self.kv_use = min(1.0, needed / max(1, batch_processor.cache.max_tokens_read))

    def _isolate(self, batch_processor: ContinuousBatchProcessor, error: Exception) -> None:
        """Give up one request after a step that failed, and begin the others anew from the tokens they have.

        Raises ``error`` when there is no request to blame or steps keep failing.
        """
        scheduler, cache = batch_processor.scheduler, batch_processor.cache
        states = list(scheduler.active_requests.values())
        waiting = list(scheduler.waiting_requests.values())
        memory = is_out_of_memory(error)
        self._failed_steps += 0 if memory else 1
        self.out_of_memory += 1 if memory else 0
        if not (states or waiting) or self._failed_steps > FAILURES_IN_A_ROW:
            raise error
        victim = _likely_cause(states or waiting[:1])
        details = None if memory else error
        _log.error("request %s given up, a step failed: %s", victim.request_id, error, exc_info=details)
        for state in states:
            # What the step wrote of these sequences into the cache may be wrong: nothing of it is to be
            # shared.
            cache.free_blocks(state.request_id, no_cache=True)
            scheduler.finish_request(state.request_id)
            if state is not victim:
                scheduler.add_waiting_request(state.create_equivalent_initial_request())
                state._status = RequestStatus.FINISHED
        if not states:
            scheduler.set_request_cancellation(victim.request_id)
            scheduler.clear_cancelled_requests()
        self.output_router.fail_and_deliver(victim, error)
        if memory and torch.cuda.is_available():
            torch.cuda.empty_cache()


def _keep_silent(states: Iterable[RequestState]) -> None:
    """Texts that are read at their end are told of once they have begun, and then when they are whole: to
    tell of each token takes a turn of the event loop and of the interpreter's lock."""
    for state in states:
        if state.streaming and state.generated_tokens:
            text: TextSampling = state.logit_processor_kwargs[KEYWORD]
            state.streaming = not text.whole


def _likely_cause(states: Sequence[RequestState]) -> RequestState:
    """The request that most likely made a step fail: the largest of those without a first token, as they are
    what is new in the step; if all have one, the longest."""
    fresh = [state for state in states if not state.generated_tokens and not state._true_initial_tokens]
    return max(fresh or states, key=lambda state: len(state.initial_tokens) + len(state.generated_tokens))
