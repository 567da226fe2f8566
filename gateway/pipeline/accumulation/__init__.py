"""Answers in one piece that their engines stream.

So an answer that breaks off can be gone on with at the next token (PROTOCOL §7.4), and gives way to more
urgent ones without loss.

Only answers that can be put together exactly are made so (:mod:`.streamed_form` says which requests ask for
such); all others are asked for in one piece.
"""

from gateway.pipeline.accumulation.run import AccumulatedRun

__all__ = ("AccumulatedRun",)
