"""When jobs are done beside when that was predicted as they were submitted."""

import json
from dataclasses import asdict, dataclass
from random import Random

from gateway.storage import Store
from tests.bench.figures import percentile
from tests.bench.jobs.client import JobClient, chat_of
from tests.bench.site import MODEL, build
from tests.support.processes import House

_SLOTS = 8
_MIX = ((20, 60), (60, 200), (200, 600))
"""Tokens of answers: short, medium and long ones, as many of each."""
_PREDICTED_AT_S = 0.5
"""The gateway tells whole seconds, rounded down."""
LEAST_S = 3.0
"""Jobs that took less are left out: half a second is too much of them."""


@dataclass(frozen=True, slots=True)
class CompletionSizes:
    jobs: int = 300
    warm: int = 60
    tokens_per_s: float = 100.0


@dataclass(frozen=True, slots=True)
class Completion:
    """Of one run. An error is a share of the time from submission to completion."""

    jobs: int
    unpredicted: int
    median_error: float
    p90_error: float
    longest_s: float
    """Until the last job was done."""

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs of {LEAST_S:g} to {self.longest_s:.0f} s, {self.unpredicted} without a "
            f"prediction: relative error of the predicted time median {self.median_error:.1%}, p90 "
            f"{self.p90_error:.1%}"
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def run(house: House, sizes: CompletionSizes, seed: int = 1, least_s: float = LEAST_S) -> Completion:
    """Warm up with jobs of the same mix, then submit all others at once."""
    site, random = build(house, slots=_SLOTS), Random(seed)
    client = JobClient(site.gateway, site.key)

    def jobs(count: int) -> list[dict[str, object]]:
        tokens = [random.randint(*_MIX[number % len(_MIX)]) for number in range(count)]
        random.shuffle(tokens)
        return [
            chat_of(MODEL, f"job {number}", each, sizes.tokens_per_s) for number, each in enumerate(tokens)
        ]

    client.submit(jobs(sizes.warm))
    client.until_ended()
    made = client.submit(jobs(sizes.jobs))
    client.until_ended()
    with Store.open(site.gateway.state) as store:
        records = store.jobs.get_many([each["id"] for each in made])
    errors, unpredicted, longest_s = [], 0, 0.0
    for each in made:
        record, predicted_s = records[each["id"]], each["predicted_completion_at"]
        assert record.finished_s is not None, record
        took_s = record.finished_s - record.created_s
        longest_s = max(longest_s, took_s)
        if predicted_s is None:
            unpredicted += 1
        elif took_s >= least_s:
            errors.append(abs(predicted_s + _PREDICTED_AT_S - record.finished_s) / took_s)
    return Completion(len(made), unpredicted, percentile(errors, 0.5), percentile(errors, 0.9), longest_s)
