"""Evidence of speeds as it is told, and as it is heard: checked, and only of those who may tell it. Pure."""

from collections.abc import Mapping, Sequence

from gateway.cluster.knowledge.document import Told, ToldEvidence, ToldSpeeds
from gateway.scheduling.learning.devices import device_class
from gateway.scheduling.learning.evidence import Evidence
from gateway.scheduling.learning.performance import READING_LEANINGS, WRITING_LEANINGS
from gateway.scheduling.learning.regression import bounded
from gateway.scheduling.learning.shared import SpeedEvidence


def told_evidence(evidence: SpeedEvidence) -> ToldSpeeds:
    """As a document has it."""
    return ToldSpeeds(
        evidence.process,
        evidence.incarnation,
        evidence.model,
        evidence.device,
        _written(evidence.reading),
        _written(evidence.writing),
        evidence.weight,
    )


def evidence_of(teller: str, told: Told, present: Mapping[str, int]) -> list[SpeedEvidence]:
    """What ``teller`` says that outcomes can say. It speaks for itself, and for processes that are no more:
    ``present`` are the incarnations of those that are there."""
    found: list[SpeedEvidence] = []
    for each in told.speeds:
        itself = (each.process, each.incarnation) == (teller, told.incarnation)
        if not itself and each.incarnation >= present.get(each.process, each.incarnation + 1):
            continue
        reading, writing = _heard(each.reading, READING_LEANINGS), _heard(each.writing, WRITING_LEANINGS)
        if (reading, writing) == (None, None):
            continue
        of = each.model, device_class(each.device)
        found.append(SpeedEvidence(each.process, each.incarnation, *of, reading, writing, each.weight))
    return found


def _written(evidence: Evidence | None) -> ToldEvidence | None:
    if evidence is None:
        return None
    rounded = evidence.rounded()
    return ToldEvidence(rounded.count, rounded.common, list(rounded.products), list(rounded.rest))


def _heard(told: ToldEvidence | None, leanings: Sequence[float]) -> Evidence | None:
    """None where nothing is told, or nothing that outcomes can say."""
    if told is None:
        return None
    return bounded(Evidence(told.count, told.common, tuple(told.products), tuple(told.rest)), leanings)
