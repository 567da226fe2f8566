"""An engine that computes every single step, to judge the one that does not."""

from collections import deque

from gateway.tools.simulate.devices import DevicePace
from gateway.tools.simulate.engine import EngineRun
from gateway.tools.simulate.prefix_cache import KvMemory


class Stepwise:
    """Takes requests with their times, runs to the end. Gives each its first and its last token's time."""

    def __init__(self, pace: DevicePace, block_tokens: int) -> None:
        self.pace = pace
        self.memory = KvMemory(pace.kv_tokens, block_tokens)
        self.waiting: deque[EngineRun] = deque()
        self.running: list[EngineRun] = []
        self.left_in: dict[EngineRun, int] = {}
        self.position: dict[EngineRun, int] = {}
        self.private: dict[EngineRun, int] = {}
        self.blocked = False
        self.times: dict[int, tuple[float, float]] = {}
        self.cached: dict[int, int] = {}

    def run(self, arrivals: list[tuple[float, EngineRun]]) -> dict[int, tuple[float, float]]:
        now, coming = 0.0, deque(arrivals)
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                now = max(now, coming[0][0])
            while coming and coming[0][0] <= now:
                self.waiting.append(coming.popleft()[1])
            now = self.step(now)
        return self.times

    def step(self, now: float) -> float:
        pace = self.pace
        while len(self.decoding) > self.memory.free:
            self.preempt()
        decoding = self.decoding
        plan: list[tuple[EngineRun, int]] = []
        budget, pairs = pace.chunk_tokens - len(decoding), 0.0
        while budget:
            run = next((each for each in self.running if self.left_in[each] and each not in dict(plan)), None)
            run = run or self.admit(len(decoding))
            if run is None:
                break
            take = min(budget, self.left_in[run])
            plan.append((run, take))
            pairs += take * (self.position[run] + take / 2)
            budget -= take
        context = sum(run.context for run in decoding)
        tokens = len(decoding) + sum(take for _, take in plan)
        now += pace.step_s + max(pace.weights_s, pace.token_s * tokens)
        now += pace.context_s * context + pace.pair_s * pairs + pace.each_s * len(decoding)
        self.memory.grow(len(decoding))  # an engine allots a step's memory before it computes it
        for run in decoding:
            self.private[run] += 1
            self.token(run, now)
        for run, take in plan:
            self.left_in[run] -= take
            self.position[run] += take
            if not self.left_in[run]:
                self.token(run, now)
        return now

    @property
    def decoding(self) -> list[EngineRun]:
        return [run for run in self.running if not self.left_in[run]]

    def token(self, run: EngineRun, now: float) -> None:
        run.generated += 1
        self.times[run.number] = self.times.get(run.number, (now, now))[0], now
        if run.generated == run.job.output_tokens:
            self.running.remove(run)
            self.memory.release(run.job.prefix, self.private[run])
            self.blocked = False

    def admit(self, decoding: int) -> EngineRun | None:
        if self.blocked or not self.waiting or len(self.running) >= self.pace.max_running:
            return None
        run, memory = self.waiting[0], self.memory
        blocks = run.job.prefix
        private = run.context - len(blocks) * memory.block_tokens
        if private + memory.new_tokens(blocks) + decoding > memory.free:
            self.blocked = True
            return None
        known = max(memory.known(blocks) * memory.block_tokens, run.job.cached_tokens)
        cached = min(known, run.context - 1)
        memory.hold(blocks, private)
        self.running.append(self.waiting.popleft())
        self.private[run], self.left_in[run], self.position[run] = private, run.context - cached, cached
        if run.number not in self.times:
            self.cached[run.number] = cached
        return run

    def preempt(self) -> None:
        run = self.running.pop()
        self.memory.release(run.job.prefix, self.private[run])
        self.waiting.appendleft(run)
        self.blocked = True
