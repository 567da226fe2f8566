"""Answers that serve more than one request: cached ones, and those that identical requests wait for together
(`docs/reuse.md`). Only where it is turned on, only for deterministic requests, and never across tenants.

``stage`` is what the pipeline knows; ``rules`` says which requests may share answers, ``cache`` which of them
are identical and what is kept, ``shared_requests`` who waits for whom, ``answers`` what clients are sent.
"""

from gateway.pipeline.cache.cache import AnswerCache
from gateway.pipeline.cache.lookup import CacheLookup, CacheMetrics, CacheStage
from gateway.pipeline.cache.rules import CacheRule, CacheSettings

__all__ = ["AnswerCache", "CacheLookup", "CacheMetrics", "CacheRule", "CacheSettings", "CacheStage"]
