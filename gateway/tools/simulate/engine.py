"""One engine under a virtual clock: continuous batching with chunked prefill, as vLLM's scheduler does it.

Each step gives every running request one token and spends what is left of the step's token budget on
prompts, first come first served; see :class:`~gateway.tools.simulate.devices.DevicePace` for what it takes.
Nothing is computed step by step where nothing changes: between two changes of the batch the time of a step
grows linearly with the contexts, so any number of steps (a *phase*) is a sum in closed form, and the engine
wakes when it is over.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from gateway.tools.simulate.devices import DevicePace
from gateway.tools.simulate.inputs import Job
from gateway.tools.simulate.prefix_cache import KvMemory

NEVER = math.inf
_NOT_DECODING = -1
_ENDLESS = 1 << 60


@dataclass(slots=True, eq=False)
class EngineRun:
    """A request on its way through gateway and engine, and what became of it. Times are virtual seconds."""

    number: int
    job: Job
    arrived_s: float
    generated: int = 0
    """Tokens of its answer so far; while it decodes, those it had when it joined the batch."""
    first_s: float | None = None
    """When its first token left an engine."""
    cached_tokens: int = 0
    """Prompt tokens that the computation of its first token found in a prefix cache."""
    preemptions: int = 0
    restarts: int = 0
    """Devices that were lost while they had it."""
    left_in: int = 0
    """Tokens to be computed before the next one of its answer."""
    position: int = 0
    """Tokens in memory before those."""
    private_tokens: int = 0
    """What it alone had in memory when it was admitted."""
    joined_step: int = 0
    end_step: int = _NOT_DECODING

    @property
    def context(self) -> int:
        return self.job.input_tokens + self.generated


@dataclass(slots=True)
class Woken:
    """What became of requests when a phase ended."""

    first: list[EngineRun] = field(default_factory=list)
    """Their first token came."""
    finished: list[EngineRun] = field(default_factory=list)


@dataclass(slots=True)
class DecodePhase:
    """``steps`` steps with the same batch, from ``start_s`` on; the first takes ``first_s``, each next one
    ``growth_s`` more."""

    start_s: float
    steps: int
    first_s: float
    growth_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s(self.steps)

    def duration_s(self, steps: int) -> float:
        """The duration of its first ``steps`` steps."""
        return steps * self.first_s + self.growth_s * (steps * (steps - 1) / 2)

    def done_by(self, now: float) -> int:
        """Steps that are over at ``now``, at most all."""
        elapsed_s, growth_s = now - self.start_s, self.growth_s
        if elapsed_s <= 0:
            return 0
        if growth_s > 0:
            linear = self.first_s - growth_s / 2
            guess = (math.sqrt(linear * linear + 2 * growth_s * elapsed_s) - linear) / growth_s
        else:
            guess = elapsed_s / self.first_s
        done = min(int(guess), self.steps)
        while done and self.duration_s(done) > elapsed_s:
            done -= 1
        while done < self.steps and self.duration_s(done + 1) <= elapsed_s:
            done += 1
        return done

    def cut_at(self, now: float) -> bool:
        """End with the step that runs at ``now``. False, and nothing is changed, when none has begun."""
        done = self.done_by(now)
        if self.duration_s(done) < now - self.start_s:
            done += 1
        self.steps = min(self.steps, done) or self.steps
        return done > 0


class SimulatedEngine:
    """``wake_s`` is when something happens next; whoever drives it calls :meth:`wake` right then."""

    def __init__(self, pace: DevicePace, block_tokens: int) -> None:
        self.pace = pace
        self.memory = KvMemory(pace.kv_tokens, block_tokens)
        self.wake_s = NEVER
        self.waiting: deque[EngineRun] = deque()
        self.running: dict[EngineRun, None] = {}
        """In the order of their admission."""
        self.decoding = 0
        self.context = 0
        """Tokens of all that decode together, when the phase began."""
        self._busy_s = 0.0
        self._step = 0
        """Steps with decoding so far."""
        self._ends: list[tuple[int, int, EngineRun]] = []
        self._joined = 0
        self._head: EngineRun | None = None
        """Whose prompt is being computed and takes more than one step."""
        self._blocked = False
        """The first that waits did not fit, and nothing has left since."""
        self._plan: list[tuple[EngineRun, int]] = []
        """Prompts the phase works on, and their tokens in each of its steps."""
        self._phase = DecodePhase(0.0, 0, 0.0, 0.0)

    def fits(self, job: Job) -> bool:
        """Whether it could ever run here."""
        return job.input_tokens + job.output_tokens <= self.memory.capacity_tokens

    def submit(self, run: EngineRun, now: float) -> None:
        """It waits here from now on. It must fit."""
        assert self.fits(run.job)
        self.waiting.append(run)
        if self.wake_s == NEVER:
            self._begin(now)
        elif not self._plan and len(self.waiting) == 1 and len(self.running) < self.pace.max_running:
            if self._phase.cut_at(now):
                self.wake_s = self._phase.end_s
            else:
                self._begin(now)

    def wake(self, now: float) -> Woken:
        """The phase that ends at ``now`` is over; the next begins."""
        assert now == self.wake_s
        self._busy_s += now - self._phase.start_s
        woken = Woken()
        self._settle(woken, now)
        self._begin(now)
        return woken

    def crash(self, now: float) -> list[EngineRun]:
        """Everything it had is lost. Returns those who ran and who waited, with what they had been given."""
        self._busy_s = self.busy_until(now)
        lost = [*self.running, *self.waiting]
        for run in lost:
            run.generated = self.generated_by(run, now)
            run.end_step = _NOT_DECODING
        self.running.clear()
        self.waiting.clear()
        self._ends.clear()
        self._plan = []
        self._head, self._blocked = None, False
        self.decoding = self.context = 0
        self.memory.clear()
        self.wake_s = NEVER
        return lost

    def busy_until(self, now: float) -> float:
        """Seconds it has worked by ``now``."""
        return self._busy_s + (now - self._phase.start_s if self.wake_s != NEVER else 0.0)

    def generated_by(self, run: EngineRun, now: float) -> int:
        """Tokens of its answer that ``run``, which is here, has been given by ``now``."""
        if run.end_step == _NOT_DECODING:
            return run.generated
        return run.generated + self._step - run.joined_step + self._phase.done_by(now)

    def backlog_by(self, now: float) -> int:
        """Tokens of prompts here that are not computed by ``now``."""
        done = self._phase.done_by(now) if self._plan else 0
        planned = sum(run.left_in - tokens * done for run, tokens in self._plan)
        return planned + sum(run.context for run in self.waiting)

    # --- A phase ---

    def _begin(self, now: float) -> None:
        self._make_room()
        pace, decoding, head = self.pace, self.decoding, self._head
        budget, steps, pair_growth = pace.chunk_tokens - decoding, _ENDLESS, 0
        if head is not None and head.left_in > budget:
            self._plan, fresh, pairs = [(head, budget)], budget, budget * (head.position + budget / 2)
            steps, pair_growth = head.left_in // budget, budget * budget
        else:
            fresh, pairs = self._pack(budget)
            if fresh:
                steps = 1
            elif not decoding:
                assert not self.waiting, "something waits that fits, and nothing runs"
                self.wake_s = NEVER
                return
        if decoding and steps > 1:
            steps = min(steps, self._next_end() - self._step, self.memory.free // decoding)
        arithmetic_s = pace.token_s * (decoding + fresh)
        first_s = (
            pace.step_s
            + (arithmetic_s if arithmetic_s > pace.weights_s else pace.weights_s)
            + pace.context_s * self.context
            + pace.pair_s * pairs
            + pace.each_s * decoding
        )
        growth_s = pace.context_s * decoding + pace.pair_s * pair_growth
        self._phase = DecodePhase(now, steps, first_s, growth_s)
        self.wake_s = self._phase.end_s

    def _pack(self, budget: int) -> tuple[int, float]:
        """Plan one step's prompts. Returns their tokens, and of these the pairs with those before them."""
        self._plan = plan = []
        left, pairs = budget, 0.0
        while left:
            run = self._head or self._admit()
            if run is None:
                break
            take = min(run.left_in, left)
            plan.append((run, take))
            pairs += take * (run.position + take / 2)
            left -= take
            self._head = run if take < run.left_in else None
        return budget - left, pairs

    def _admit(self) -> EngineRun | None:
        """The first that waits gets memory, if there is a place and room for it and for the next step of all
        others."""
        if self._blocked or not self.waiting or len(self.running) >= self.pace.max_running:
            return None
        run, memory = self.waiting[0], self.memory
        blocks, tokens = run.job.prefix, run.context
        private = tokens - len(blocks) * memory.block_tokens
        if private + memory.new_tokens(blocks) + self.decoding > memory.free:
            self._blocked = True
            return None
        self.waiting.popleft()
        cached = min(max(memory.known(blocks) * memory.block_tokens, run.job.cached_tokens), tokens - 1)
        memory.hold(blocks, private)
        self.running[run] = None
        run.private_tokens, run.position, run.left_in = private, cached, tokens - cached
        if run.first_s is None:
            run.cached_tokens = cached
        return run

    def _settle(self, woken: Woken, now: float) -> None:
        steps = self._phase.steps
        if self.decoding:
            grown = steps * self.decoding
            self._step += steps
            self.context += grown
            self.memory.grow(grown)
            while self._ends and self._next_end() <= self._step:
                run = heapq.heappop(self._ends)[2]
                self._leave_batch(run)
                del self.running[run]
                self._blocked = False
                woken.finished.append(run)
        for run, tokens in self._plan:
            run.position += tokens * steps
            run.left_in -= tokens * steps
            if not run.left_in:
                if self._head is run:
                    self._head = None
                self._join_batch(run, woken, now)

    def _join_batch(self, run: EngineRun, woken: Woken, now: float) -> None:
        """Its prompt is computed, and with it the next token."""
        run.generated += 1
        if run.first_s is None:
            run.first_s = now
            woken.first.append(run)
        left = run.job.output_tokens - run.generated
        if not left:
            self.memory.release(run.job.prefix, run.private_tokens)
            del self.running[run]
            self._blocked = False
            woken.finished.append(run)
            return
        run.joined_step, run.end_step = self._step, self._step + left
        self._joined += 1
        heapq.heappush(self._ends, (run.end_step, self._joined, run))
        self.decoding += 1
        self.context += run.context

    def _leave_batch(self, run: EngineRun) -> None:
        """It decodes no more; what it has in memory goes."""
        done = self._step - run.joined_step
        self.decoding -= 1
        self.context -= run.context + done
        self.memory.release(run.job.prefix, run.private_tokens + done)
        run.generated += done
        run.end_step = _NOT_DECODING

    def _make_room(self) -> None:
        """Every running request needs room for one more token; while there is not, the last one admitted
        loses its memory and waits, first in line, to be computed anew."""
        while self.decoding > self.memory.free:
            run, _ = self.running.popitem()
            if run.end_step == _NOT_DECODING:
                self._head = None
                self.memory.release(run.job.prefix, run.private_tokens)
            else:
                self._leave_batch(run)
            run.preemptions += 1
            self.waiting.appendleft(run)
            self._blocked = True

    def _next_end(self) -> int:
        """When the first of those who decode is done; entries of others are dropped."""
        ends = self._ends
        while ends:
            end, _, run = ends[0]
            if run.end_step == end:
                return end
            heapq.heappop(ends)
        return _ENDLESS
