"""How a load goes up and down within a step: what waits, waits in bursts that a mean of minutes has no trace
of. Pure and bounded.

Of each step there is one byte for each of its ``PIECES``: the load of that piece by the greatest of the
step, as a whole number of 255ths. So a day takes 8,640 bytes, whatever comes. Where all bytes of a step are
zero, nothing is known of it, and its load is taken to be even.
"""

from collections.abc import Sequence

from gateway.scheduling.scaling.forecast import STEP_S

PIECE_S = 10.0
PIECES = int(STEP_S / PIECE_S)
UNKNOWN = bytes(PIECES)
_MOST = 255


def packed(loads: Sequence[float | None]) -> bytes:
    """The loads of a step's pieces; None: of that piece it is not known, so that it is taken for the mean of
    the others."""
    known = [each for each in loads if each is not None]
    most = max(known, default=0.0)
    if most <= 0.0:
        return UNKNOWN
    mean = sum(known) / len(known)
    return bytes(round(_MOST * (mean if each is None else each) / most) for each in loads)


def shares(bursts: bytes) -> Sequence[float] | None:
    """Of each piece the load by the mean of the step; None: it is not known."""
    whole = sum(bursts)
    if len(bursts) != PIECES or not whole:
        return None
    return [PIECES * each / whole for each in bursts]


def ending_at(start_s: float, bursts: bytes, end_s: float, steps: int) -> bytes:
    """Of ``bursts``, which begin with the step at ``start_s``, those of the ``steps`` before ``end_s``. What
    is missing at either end is not known."""
    first = round((end_s - start_s) / STEP_S) - steps
    before = min(steps, max(0, -first))
    found = bytes(PIECES * before) + bursts[max(0, first) * PIECES : max(0, first + steps) * PIECES]
    return found + bytes(PIECES * steps - len(found))
