"""What a gateway would guess of an answer's length: what its tenant's answers were like, within its limit."""

from collections import OrderedDict

from gateway.simulate.traffic import Job

PRIOR_TOKENS = 128.0
WEIGHT = 0.05
MOST_TENANTS = 10_000


class OutputGuess:
    """A moving mean for each tenant, and one of all for tenants not seen yet."""

    def __init__(self) -> None:
        self._all = PRIOR_TOKENS
        self._means: OrderedDict[tuple[str, str], float] = OrderedDict()

    def guess(self, job: Job) -> int:
        """In tokens, at least 1."""
        mean = self._means.get((job.tenant, job.kind), self._all)
        return max(1, round(mean if job.max_tokens is None else min(mean, job.max_tokens)))

    def learn(self, job: Job) -> None:
        """Its answer is complete."""
        key = job.tenant, job.kind
        self._all += WEIGHT * (job.output_tokens - self._all)
        mean = self._means.get(key, self._all)
        self._means[key] = mean + WEIGHT * (job.output_tokens - mean)
        self._means.move_to_end(key)
        if len(self._means) > MOST_TENANTS:
            self._means.popitem(last=False)
