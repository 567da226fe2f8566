"""Where the bytes of a job lie in the object store.

=================================================  ==========================================================
``jobs/{id}/body``                                 the request's body, unless it is a slice of a file
``jobs/{id}/output/{generation}-00000000``         what is known of a run's partial output (JSON); written
                                                   when the bytes it begins with are there
``jobs/{id}/output/{generation}-{sequence}``       its bytes in order, from sequence 1 on
``jobs/{id}/result/{since}-{generation}``          the whole answer
=================================================  ==========================================================

Each run of a job (a *generation*) writes objects of its own, so that a run which lost its lease never changes
what another one wrote. ``since`` is the generation in which the bytes began at zero: a run that goes on from
an earlier one's output keeps it, a run that starts over has its own.
"""

import re
from dataclasses import dataclass

JOBS = "jobs"
_OUTPUT = re.compile(r"jobs/[^/]+/output/(\d{6,})-(\d{8,})\Z")
_RESULT = re.compile(r"jobs/[^/]+/result/(\d{6,})-(\d{6,})\Z")


@dataclass(frozen=True, slots=True, order=True)
class OutputPosition:
    """A place in the output of a job. Offsets of the same ``since`` are of the same bytes."""

    since: int = 0
    offset: int = 0


START = OutputPosition()
"""The first byte there is."""


def job_prefix(job_id: str) -> str:
    """The directory of everything that a job has."""
    return f"{JOBS}/{job_id}"


def body_name(job_id: str) -> str:
    return f"{JOBS}/{job_id}/body"


def output_prefix(job_id: str) -> str:
    return f"{JOBS}/{job_id}/output"


def output_name(job_id: str, generation: int, sequence: int) -> str:
    return f"{JOBS}/{job_id}/output/{generation:06d}-{sequence:08d}"


def result_name(job_id: str, since: int, generation: int) -> str:
    return f"{JOBS}/{job_id}/result/{since:06d}-{generation:06d}"


def output_numbers(name: str) -> tuple[int, int] | None:
    """Generation and sequence of an object of partial output; None for another name."""
    found = _OUTPUT.match(name)
    return None if found is None else (int(found[1]), int(found[2]))


def result_since(name: str) -> int:
    """In which generation the bytes of a result began at zero; 0 for a result of another name."""
    found = _RESULT.match(name)
    return 0 if found is None else int(found[1])
