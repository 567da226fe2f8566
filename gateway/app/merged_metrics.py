"""``/metrics`` of all workers, whichever of them is asked."""

import asyncio

from gateway.observability.exposition import merge_expositions
from gateway.observability.metrics import Metrics
from gateway.runtime.workers.siblings import Json, Siblings


class MergedMetrics:
    """Has the form of :class:`gateway.observability.metrics.Metrics` that a page needs."""

    CONTENT_TYPE = Metrics.CONTENT_TYPE
    exemplars = False
    """The pages of several processes are merged without them."""

    def __init__(self, metrics: Metrics, siblings: Siblings) -> None:
        self._metrics = metrics
        self._siblings = siblings
        siblings.answer("metrics", self._here)

    async def render(self) -> bytes:
        """The exposition text of all that answer in time."""
        own, answers = await asyncio.gather(self._metrics.render(), self._siblings.ask_all("metrics"))
        pages = {self._siblings.own: own}
        pages |= {name: str(each["text"]).encode() for name, each in answers.found.items()}
        return await asyncio.to_thread(merge_expositions, pages, answers.missing)

    async def render_exemplars(self) -> bytes:
        """There are none; see :attr:`exemplars`."""
        return await self.render()

    async def _here(self, asked: Json) -> Json:
        return {"text": (await self._metrics.render()).decode()}
