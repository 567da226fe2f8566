"""What the codes of decision records mean, and the sentences that explain one request. Pure."""

from collections.abc import Mapping
from typing import Any

from shared.process.excerpt import printable

Json = Mapping[str, Any]

EXCLUDED: Mapping[str, str] = {
    "full": "all its slots were used",
    "health": "failures let it take fewer requests, or none, just then",
    "suspended": "its tunnel was gone or silent",
    "session_full": "its agent had as many streams as it takes",
    "draining": "its agent gets no new work",
    "not_loaded": "its model was not loaded",
    "closing": "it was to be unloaded",
    "route": "its engine does not have what the request needs",
    "avoided": "the request failed there, or was there last",
    "version": "the request wants another version",
    "residency": "the request may not run there",
    "agent": "the request is for another agent",
    "cannot_continue": "its engine cannot go on with an answer that another one began",
    "context": "its engine had no room for the request's context",
    "translated": "its agent would have to translate the request, and others need not",
    "region_dearer": "its region is farther or costs more, and waiting at a nearer one cost less",
    "region_pilot": "its region is used only when the others fail or are full",
    "region_down": "its region was lost, and is only just back",
    "region_held": "its region was lost not long ago, and is left alone for a while",
    "region_returning": "its region was lost not long ago, and gets a share of the requests only",
    "region_shifted_away": "this request is among those that are moved to another region",
}
"""Why a deployment could not take a request, or did not get it for its region, by code."""

REGIONS: Mapping[str, str] = {
    "nearest": "it is the nearest, or costs least",
    "spilled_over": "waiting at nearer ones cost more than going there",
    "failed_over": "a nearer one is lost, or was not long ago",
    "pilot_light": "the others failed or were full",
    "shifted": "this request is among those that are moved there",
}
"""Why a request went to a region, by code."""

WAITS: Mapping[str, str] = {
    "no_slot": "every slot of the model was used",
    "held": "the scheduler let requests wait for a deployment that it predicted to finish them sooner",
    "no_suitable_slot": "free slots did not suit those who waited (version, place, agent, context), or were "
    "kept free from jobs",
    "loading": "the model was being loaded, or waited for room to be loaded",
    "no_deployment": "no deployment of the model took work",
}
"""Why requests for a model waited, by code."""

TROUBLES: Mapping[str, str] = {
    "no_path": "its engine has nothing at the request's path",
    "refused": "its agent had no slot: the slot had been given to another gateway process meanwhile",
    "unreachable": "there was no engine",
    "overloaded": "its engine had enough to do and said so",
    "status": "its engine answered with an error",
    "broken": "its engine failed before its answer was whole",
    "timeout": "its engine took longer than it may",
    "stalled": "its answer stopped for longer than its rhythm explains",
    "lost": "its agent's session was over",
    "engine_lost": "its agent said that the engine was gone",
    "draining": "its agent was going away",
    "declined": "its agent, a gateway, would not take the request",
    "preempted": "it gave its slot back to a more urgent request",
    "usage_option": "its engine may have rejected the option that asks for usage",
    "suspended": "its tunnel stayed away",
    "late": "it was late, and a second copy was worth it",
}
"""Why an attempt did not bring a request to its end, by code."""

OUTCOMES: Mapping[str, str] = {
    "answered": "it answered",
    "running": "it runs",
    "given_up": "it was given up because another copy or another deployment answered, or the client left",
    **TROUBLES,
}

_PARTS = (
    ("queue", "prompts before it"),
    ("load", "loading the model"),
    ("transfer", "the tunnel"),
    ("prefill", "reading the prompt"),
    ("decode", "writing the answer"),
)


def coded(code: str, words: Mapping[str, str]) -> dict[str, str]:
    """A code with what it means; a code that is not known means itself."""
    return {"code": code, "words": words.get(code, code.replace("_", " "))}


def seconds(value: float) -> str:
    """``0.25 s``, ``12 ms``, ``3 min 20 s``."""
    if value < 0.0995:
        return f"{value * 1000:.3g} ms"
    if value < 119.5:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"


def explain(record: Json) -> list[str]:
    """Sentences about one record, as :func:`gateway.dispatch.decisions.description.describe` gives it."""
    lines = [_what(record)]
    lines += _waiting(record)
    for number, decision in enumerate(record["decisions"]):
        lines += _placing(record, number, decision)
    lines += _ending(record)
    return [printable(line) for line in lines]


def _what(record: Json) -> str:
    model = record["model"] or "no model that is known"
    asked = f"{record['alias']} (which stood for {record['target'] or model})" if record["alias"] else model
    how = "streamed" if record["streaming"] else "in one piece"
    tier = f", tier {record['tier']}" if record["tier"] else ""
    return (
        f"A request for {asked}, {record['route']}, {how}{tier}, of key {record['key']} "
        f"(tenant {record['tenant']})."
    )


def _waiting(record: Json) -> list[str]:
    queue = record["queue"]
    if record["state"] == "queued":
        first = f"It waits: {seconds(queue['waited_s'])} so far"
    elif not record["decisions"] and queue["waited_s"] is None:
        return ["It did not come as far as the queue."]
    elif queue["waited_s"] < 0.001:
        return ["It did not wait: a slot was free."]
    else:
        first = f"It waited {seconds(queue['waited_s'])} for a slot"
    ahead = queue["ahead"]
    first += (
        f"; {ahead} {'request' if ahead == 1 else 'requests'} waited for the model when it came"
        if ahead
        else ""
    )
    return [f"{first}.", *(f"For {seconds(each['s'])}, {each['words']}." for each in queue["reasons"])]


def _placing(record: Json, number: int, decision: Json) -> list[str]:
    where, why = decision["deployment"], decision["why"]
    lines = []
    if decision["hedge"]:
        first = f"A second copy went to {where} after {seconds(decision['after_s'])}"
    elif decision["continuing"]:
        first = f"{where} went on with the answer, {seconds(decision['after_s'])} after the request came"
    else:
        first = f"{'It' if not number else 'Then it'} went to {where} after {seconds(decision['after_s'])}"
    lines.append(f"{first}, because {why['words']}." if why else f"{first}.")
    if region := decision.get("region"):
        lines.append(f"The region {region['name'] or 'without a name'} was taken: {region['words']}.")
    lines += _choosing(decision)
    lines += _compared(decision)
    if decision["outcome"]["code"] != "answered":
        lines.append(f"What came of it there: {_outcome(decision['outcome'])}.")
    return lines


def _outcome(outcome: Json) -> str:
    """What the code means, and how the agent puts it, which for a broken answer says all there is to say."""
    said = str(outcome.get("said") or "").rstrip(".")
    if not said:
        return str(outcome["words"])
    return said if outcome["code"] == "broken" else f"{outcome['words']}: {said}"


def _choosing(decision: Json) -> list[str]:
    """Why it went there."""
    chosen = next((each for each in decision["candidates"] if each["chosen"]), None)
    if chosen is None:
        return []
    others = [each for each in decision["candidates"] if not each["chosen"]]
    able = [each for each in others if each["excluded"] is None]
    lines, considered = [], decision["considered"]
    if considered <= 1:
        lines.append("There was no other deployment of the model.")
    elif not able:
        lines.append(f"Of {considered} deployments it was the one that could take the request.")
    elif decision["policy"] == "cost" and chosen["predicted"]:
        best = min(able, key=_weighed)
        ours, theirs = _weighed(chosen), _weighed(best)
        how = (
            "the least" if ours <= theirs else "not the least: a session, or what was placed before, decided"
        )
        lines.append(
            f"The policy cost weighs {seconds(ours)} there, {how}; next is {best['deployment']} with "
            f"{seconds(theirs)} ({_difference(chosen, best)})."
        )
    else:
        lines.append(
            f"The policy {decision['policy']} chose it among {len(able) + 1} that could take the request."
        )
    lines += [
        f"Not {each['deployment']}: {each['excluded']['words']}." for each in others if each["excluded"]
    ]
    if (left_out := considered - len(decision["candidates"])) > 0:
        more = "1 more deployment was" if left_out == 1 else f"{left_out} more deployments were"
        lines.append(f"{more} there, of which no facts are kept.")
    return lines


def _weighed(candidate: Json) -> float:
    predicted = candidate["predicted"]
    return float("inf") if predicted is None else float(predicted["weighed"])


def _difference(chosen: Json, other: Json) -> str:
    """Which part makes the most difference."""
    ours, theirs = chosen["predicted"], other["predicted"]
    names = (*_PARTS, ("others", "what it costs those that run there"))
    part, words = max(names, key=lambda each: abs(theirs[each[0]] - ours[each[0]]))
    if abs(theirs[part] - ours[part]) < 0.0005:
        return "there is hardly a difference"
    return f"most of the difference: {words}, {seconds(ours[part])} against {seconds(theirs[part])}"


def _compared(decision: Json) -> list[str]:
    """Predicted beside actual."""
    chosen = next((each for each in decision["candidates"] if each["chosen"]), None)
    if chosen is None or chosen["predicted"] is None:
        return []
    predicted, actual = chosen["predicted"], decision["actual"]
    parts = ", ".join(
        f"{words} {seconds(predicted[name])}" for name, words in _PARTS if predicted[name] >= 0.0005
    )
    text = f"Predicted: {seconds(predicted['total'])}" + (f" ({parts})" if parts else "")
    if decision["outcome"]["code"] != "answered" or actual["total_s"] is None:
        return [f"{text}."]
    text += f"; it took {seconds(actual['total_s'])}"
    if actual["first_token_s"] is not None:
        text += (
            f", its first token {seconds(actual['first_token_s'])} "
            f"(predicted {seconds(predicted['first_token'])})"
        )
    return [f"{text}."]


def _ending(record: Json) -> list[str]:
    state = record["state"]
    if state in ("queued", "running"):
        return [f"It is not over: {seconds(record['total_s'])} so far."]
    ended = {
        "answered": f"It was answered with status {record['status']}",
        "cancelled": "Its client left before the end",
        "failed": f"It failed with status {record['status']} ({record['error'] or 'no code'})",
    }[state]
    lines = [f"{ended}, {seconds(record['total_s'])} after it came."]
    if not record["decisions"] and state == "answered":
        lines.append("No engine was asked: the answer was kept from another request.")
    used = [
        f"{count} {words.format(s='' if count == 1 else 's')}"
        for count, words in (
            (record["tokens"]["prompt"], "prompt token{s}"),
            (record["tokens"]["completion"], "token{s} written"),
            (record["tokens"]["cached"], "of the prompt cached"),
        )
        if count
    ]
    if record["gpu_s"]:
        used.append(f"{record['gpu_s']:.3g} GPU-seconds")
    if record["cost"]:
        used.append(f"cost {_plain(record['cost'])}")
    return [*lines, f"It used {', '.join(used)}."] if used else lines


def _plain(value: float) -> str:
    """Without an exponent, to a billionth."""
    return f"{value:.9f}".rstrip("0").rstrip(".")
