"""The catalogue with aliases in it: clients list what they may ask for."""

import heapq
from collections.abc import Iterator

from gateway.fleet.registry import Registry, ServedModel
from gateway.pipeline.aliases.cache import AliasCache
from gateway.pipeline.aliases.served_versions import deployments_of
from gateway.storage import AliasRecord


class AliasCatalog:
    """Models and aliases as one list. An alias with a model's name takes that model's place."""

    def __init__(self, models: Registry, aliases: AliasCache, owned_by: str) -> None:
        self._models = models
        self._aliases = aliases
        self._owned_by = owned_by

    @property
    def agents_connected(self) -> int:
        """Agents with a session."""
        return self._models.agents_connected

    def each_model(self) -> Iterator[ServedModel]:
        """Every model that was ever served and every alias, by name, each as it is when it is asked for."""
        aliases = {name: each for name, each in self._aliases.records.items() if each.alias.targets}
        models = (info for info in self._models.each_model() if info.id not in aliases)
        described = (self._describe(record) for _, record in sorted(aliases.items()))
        return heapq.merge(models, described, key=lambda info: info.id)

    def model(self, name: str) -> ServedModel | None:
        """The model or alias called ``name``; None if it is no alias and was never served."""
        record = self._aliases.records.get(name)
        if record is None or not record.alias.targets:
            return self._models.model(name)
        return self._describe(record)

    def _describe(self, record: AliasRecord) -> ServedModel:
        """The alias as a model. It is ready if at least one of its targets with a weight is ready."""
        targets = [target for target in record.alias.targets if target.weight]
        known = [each for target in targets for each in deployments_of(self._models.index, target)]
        serving = [each for each in known if each.promising]
        others = [each for each in known if not each.promising]
        return ServedModel.of(record.alias.name, int(record.created_s), self._owned_by, serving, others)
