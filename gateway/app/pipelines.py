"""The pipelines of a gateway: that of its clients' requests, and those of its jobs."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.pipeline.accumulation import AccumulatedRun
from gateway.pipeline.aliases import AliasResolver
from gateway.pipeline.cache import CacheStage
from gateway.pipeline.classify import OnlyModel
from gateway.pipeline.pipeline import KeyAuthenticator, Pipeline
from gateway.pipeline.relay import Run
from gateway.quota import Limits
from gateway.quota.usage import UsageLedger


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """What they share; see :class:`Pipeline`."""

    dispatch: Run
    ledger: UsageLedger
    aliases: AliasResolver
    cache: CacheStage
    limits: Limits
    facts: bool
    gate: Callable[[], None] | None
    knows: Callable[[str], bool]
    only: OnlyModel
    continues: Callable[[str, str], bool]
    """Whether an engine is there that can go on with an answer of a model and route."""

    def pipeline(self, keys: KeyAuthenticator, *, reuse: bool = True, accumulates: bool = False) -> Pipeline:
        """One with these keys. Without ``reuse`` each answer is an engine's. With ``accumulates`` engines may
        stream answers in one piece, where a request has a place for that."""
        return Pipeline(
            keys,
            AccumulatedRun(self.dispatch, self.continues) if accumulates else self.dispatch,
            self.ledger,
            self.aliases,
            self.cache if reuse else None,
            self.limits,
            facts=self.facts,
            gate=self.gate,
            knows=self.knows,
            only=self.only,
        )
