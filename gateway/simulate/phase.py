"""Many steps of an engine at once: as long as its batch stays the same, each takes longer than the one before
by the same amount."""

import math


class Phase:
    """``steps`` steps from ``start_s`` on; the first takes ``first_s``, each next one ``growth_s`` more."""

    __slots__ = ("first_s", "growth_s", "start_s", "steps")

    def __init__(self, start_s: float, steps: int, first_s: float, growth_s: float) -> None:
        self.start_s = start_s
        self.steps = steps
        self.first_s = first_s
        self.growth_s = growth_s

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s(self.steps)

    def duration_s(self, steps: int) -> float:
        """Of its first ``steps`` steps."""
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
