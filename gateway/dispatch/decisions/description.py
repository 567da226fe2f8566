"""A record as JSON (docs/admin.md), computed when somebody asks. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.dispatch.decisions.decision import Decision
from gateway.dispatch.decisions.records import KeptRequest
from gateway.dispatch.decisions.words import EXCLUDED, OUTCOMES, REGIONS, TROUBLES, WAITS, coded, explain
from gateway.observability.audit import cost_of, why_not
from gateway.scheduling.prediction import Candidate, Prediction, predict

Json = dict[str, Any]

_S = 6
"""Digits of seconds."""


def summarize(record: KeptRequest, process: str, slow_s: float) -> Json:
    """What a list says of a request."""
    facts = record.facts
    ran = facts.deployments[-1] if facts.deployments else None
    usage = facts.usage
    return {
        "id": facts.id,
        "process": process,
        "at": round(record.began_at_s, 3),
        "state": record.state,
        "status": facts.status or None,
        "error": facts.error,
        "slow": record.first_s >= slow_s,
        "model": facts.model,
        "alias": facts.alias,
        "route": facts.route,
        "tier": None if facts.tier is None else facts.tier.value,
        "streaming": record.streaming,
        "tenant": facts.tenant,
        "key": record.key_name,
        "key_id": facts.key_id,
        "deployment": ran,
        "agent": None if ran is None else ran.partition("/")[0],
        "attempts": len(facts.deployments),
        "queued_s": _rounded(facts.queue_s),
        "first_byte_s": _rounded(facts.first_byte_s),
        "total_s": round(facts.total_s, _S),
        "tokens_in": None if usage is None else usage.prompt_tokens,
        "tokens_out": None if usage is None else usage.completion_tokens,
    }


def describe(record: KeptRequest, process: str, slow_s: float) -> Json:
    """All that is kept of a request."""
    facts, usage = record.facts, record.facts.usage
    gpu_s = max(facts.gpu_s, sum(each.gpu_s or 0.0 for each in record.decisions))
    price = facts.price
    found = summarize(record, process, slow_s) | {
        "target": facts.target,
        "version": facts.version,
        "ran_by": facts.ran_by,
        "tokens": {
            "prompt": None if usage is None else usage.prompt_tokens,
            "completion": None if usage is None else usage.completion_tokens,
            "cached": None if usage is None else usage.cached_tokens,
            "expected_prompt": record.input_tokens,
            "expected_completion": record.output_tokens,
        },
        "bytes": {"in": record.bytes_in, "out": record.bytes_out},
        "cost": None if price is None else round(cost_of(price, gpu_s, usage), 9),
        "gpu_s": round(gpu_s, _S),
        "preempted": record.preempted,
        "queue": _queue(record),
        "decisions": _decisions(record),
    }
    return found | {"words": explain(found)}


def _queue(record: KeptRequest) -> Json:
    decisions, left = record.decisions, record.last_wait
    waits = [(each.entered_s, each.opened_s, each.ahead, each.waits) for each in decisions]
    if left is not None:
        waits.append(left)
    reasons: dict[str, float] = {}
    for _, _, _, found in waits:
        for code, lasted_s in found:
            reasons[code] = reasons.get(code, 0.0) + lasted_s
    waited_s = sum(max(0.0, until_s - since_s) for since_s, until_s, _, _ in waits)
    return {
        "waited_s": round(waited_s, _S) if waits else None,
        "ahead": waits[0][2] if waits else None,
        "reasons": [{**coded(code, WAITS), "s": round(s, _S)} for code, s in reasons.items()],
    }


def _decisions(record: KeptRequest) -> list[Json]:
    facts, decisions = record.facts, record.decisions
    failed = why_not([each.key for each in decisions], facts.troubles or ())
    shown: list[Json] = []
    for number, decision in enumerate(decisions):
        began_s = decision.opened_s if record.arrived_s is None else record.arrived_s
        before = failed[number - 1] if number else ""
        late = "late" if decision.second_copy else "suspended"
        outcome = _outcome(record, number, failed[number])
        shown.append(
            {
                "after_s": round(max(0.0, decision.opened_s - began_s), _S),
                "deployment": decision.key,
                "agent": decision.agent,
                "policy": decision.policy,
                "region": _region(decision),
                "continuing": decision.continuing,
                "hedge": decision.second_copy,
                "why": coded(before or late, TROUBLES) if number else None,
                "considered": decision.considered,
                "candidates": [_candidate(each, decision) for each in decision.candidates],
                "actual": _actual(decision, outcome),
                "outcome": coded(outcome, OUTCOMES) | {"said": decision.said or None},
            }
        )
    return shown


def _region(decision: Decision) -> Json | None:
    """Where it went, and why there."""
    if decision.region is None:
        return None
    name, code = decision.region
    return {"name": name, **coded(code, REGIONS)}


def _outcome(record: KeptRequest, number: int, trouble: str) -> str:
    """What came of one attempt."""
    decision = record.decisions[number]
    if trouble:
        return trouble
    if decision.ended_s is None and not record.facts.status:
        return "running"
    last = not any(each.opened_s > decision.opened_s for each in record.decisions[number + 1 :])
    answered = record.state == "answered" or (record.state == "running" and decision.ended_s is None)
    return "answered" if last and answered else "given_up"


def _actual(decision: Decision, outcome: str) -> Mapping[str, float | None]:
    """Seconds from when the deployment got it."""
    since_s = decision.opened_s

    def after(at_s: float | None) -> float | None:
        return None if at_s is None else round(at_s - since_s, _S)

    return {
        "first_byte_s": after(decision.first_byte_s),
        "first_token_s": after(decision.first_piece_s),
        "total_s": after(decision.ended_s),
        "gpu_s": _rounded(decision.gpu_s),
    }


def _candidate(candidate: Candidate, decision: Decision) -> Json:
    excluded = candidate.excluded
    predicted = predict(
        candidate, decision.input_tokens, decision.output_tokens, decision.opened_s, decision.slack_s
    )
    return {
        "deployment": candidate.key,
        "agent": candidate.agent,
        "device": candidate.device,
        "version": candidate.version,
        "chosen": candidate.key == decision.key,
        "excluded": None if excluded is None else coded(excluded, EXCLUDED),
        "slots": candidate.slots,
        "in_flight": candidate.in_flight,
        "cached_tokens": candidate.cached_tokens,
        "predicted": None if excluded in _NOWHERE else _parts(predicted),
    }


_NOWHERE = frozenset(("route", "version", "residency", "agent", "cannot_continue", "not_loaded", "suspended"))
"""Exclusions of which no time would change anything just then: nothing is predicted there."""


def _parts(predicted: Prediction) -> Mapping[str, float]:
    return {
        "queue": round(predicted.queue_s, _S),
        "load": round(predicted.load_s, _S),
        "transfer": round(predicted.transfer_s, _S),
        "prefill": round(predicted.prefill_s, _S),
        "decode": round(predicted.decode_s, _S),
        "first_token": round(predicted.first_token_s, _S),
        "total": round(predicted.total_s, _S),
        "others": round(predicted.others_s, _S),
        "health": round(predicted.health, _S),
        "weighed": round(predicted.weighed_s, _S),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _S)


def newest(records: Sequence[KeptRequest]) -> KeptRequest | None:
    """Of those with one id, which clients choose, the one that arrived last."""
    return max(records, key=lambda each: each.began_at_s, default=None)
