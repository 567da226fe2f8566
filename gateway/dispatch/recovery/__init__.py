"""Going on with a streamed answer at another engine when the first one is lost.

Pure: bytes in, bytes out. While all is well an answer is only recorded (:class:`AnswerRecord`); its request
and what came of it are parsed when the worker is lost (:class:`ContinuationReading`), a slice at a time, and
only then is JSON read of the events that come after (:class:`Splicer`). What cannot be continued soundly is
refused with a reason.
"""

from gateway.dispatch.recovery.continued_request import AnswerProgress
from gateway.dispatch.recovery.editing import NotContinuable
from gateway.dispatch.recovery.events import SpliceFailed
from gateway.dispatch.recovery.reading import ContinuationReading
from gateway.dispatch.recovery.record import AnswerRecord, RecordBudget
from gateway.dispatch.recovery.splicing import Splicer

__all__ = (
    "AnswerProgress",
    "AnswerRecord",
    "ContinuationReading",
    "NotContinuable",
    "RecordBudget",
    "SpliceFailed",
    "Splicer",
)
