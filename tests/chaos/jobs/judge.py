"""Holds what came of a batch against its lines. Pure."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.chaos.jobs.lines import REFUSED_STATUS, BatchLine

DOUBLED_SHARE = 0.02
"""As many of the tokens may be computed twice."""
_SHOWN = 20


@dataclass(slots=True)
class BatchFindings:
    """What is wrong with batches, and how many tokens their answers have."""

    faults: "defaultdict[str, list[str]]" = field(default_factory=lambda: defaultdict(list))
    """By what is wrong: with what."""
    lines: int = 0
    right: int = 0
    refused: int = 0
    tokens: int = 0
    """Of right answers of scripted engines."""

    @property
    def wrong(self) -> list[str]:
        """In words; empty when nothing is."""
        return [
            f"{what} ({len(names)}): {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}"
            for what, names in self.faults.items()
        ]

    def judge(
        self, lines: Sequence[BatchLine], batch: Mapping[str, Any], output: bytes, errors: bytes
    ) -> None:
        """Note what is wrong with one batch: the object as the gateway shows it, and its files."""
        expected = {line.custom_id: line for line in lines}
        self.lines += len(lines)
        answered, refused = _entries(output), _entries(errors)
        self._judge_ids(expected, [*answered, *refused])
        order = {line.custom_id: place for place, line in enumerate(lines)}
        for name, entries in (("output", answered), ("error", refused)):
            places = [order[each["custom_id"]] for each in entries if each.get("custom_id") in order]
            if places != sorted(places):
                self.faults["not in the order of the lines"].append(f"{name} file of {batch['id']}")
        sums: Counter[str] = Counter()
        for entry in answered:
            if (line := expected.get(entry.get("custom_id", ""))) is not None:
                self._judge_answer(line, entry, sums)
        for entry in refused:
            if (line := expected.get(entry.get("custom_id", ""))) is not None:
                self._judge_refusal(line, entry)
        self._judge_counts(lines, batch, sums)

    def judge_tokens(self, computed: int, limit: float = DOUBLED_SHARE) -> float:
        """The share of tokens that scripted engines have ``computed`` and that are in no answer."""
        doubled = computed / max(1, self.tokens) - 1.0
        if doubled > limit:
            self.faults["tokens computed twice"].append(f"{doubled:.2%}, {limit:.2%} may be")
        if doubled < 0.0:
            self.faults["tokens not computed"].append(f"{self.tokens} in the answers, {computed} computed")
        return doubled

    def _judge_ids(self, expected: Mapping[str, BatchLine], entries: Sequence[Mapping[str, Any]]) -> None:
        for member in ("custom_id", "id"):
            times = Counter(str(each.get(member)) for each in entries)
            self._note(f"doubled {member}", [name for name, count in times.items() if count > 1])
            if member == "custom_id":
                self._note("lost lines", [name for name in expected if name not in times])
                self._note("unknown lines", [name for name in times if name not in expected])

    def _judge_answer(self, line: BatchLine, entry: Mapping[str, Any], sums: "Counter[str]") -> None:
        response = entry.get("response") or {}
        body = response.get("body")
        try:
            assert isinstance(body, dict)
            text, usage = body["choices"][0]["message"]["content"], body["usage"]
            sums.update({name: usage[f"{name}_tokens"] for name in ("prompt", "completion")})
        except (AssertionError, KeyError, IndexError, TypeError):
            self._note("no answer", [f"{line.custom_id}: {entry}"[:300]])
            return
        if line.is_refused or response["status_code"] != 200 or text != line.text:
            self._note("wrong answer", [f"{line.custom_id}: {response['status_code']} {text!r}"[:300]])
        elif not line.recorded and usage["completion_tokens"] != line.tokens:
            self._note("wrong usage", [f"{line.custom_id}: {usage}, expected {line.tokens}"])
        else:
            self.right += 1
            self.tokens += 0 if line.recorded else line.tokens

    def _judge_refusal(self, line: BatchLine, entry: Mapping[str, Any]) -> None:
        response = entry.get("response") or {}
        if line.is_refused and response.get("status_code") == REFUSED_STATUS:
            self.refused += 1
        else:
            self._note("failed", [f"{line.custom_id}: {entry}"[:300]])

    def _judge_counts(
        self, lines: Sequence[BatchLine], batch: Mapping[str, Any], sums: "Counter[str]"
    ) -> None:
        refused = sum(line.is_refused for line in lines)
        counts = {"total": len(lines), "completed": len(lines) - refused, "failed": refused}
        usage = batch.get("usage") or {}
        told = {"prompt": usage.get("input_tokens"), "completion": usage.get("output_tokens")}
        for what, seen, wanted in (
            ("status", batch["status"], "completed"),
            ("counts", batch.get("request_counts"), counts),
            ("usage", told, {"prompt": sums["prompt"], "completion": sums["completion"]}),
            ("total of its usage", usage.get("total_tokens"), sums.total()),
        ):
            if seen != wanted:
                self.faults[f"wrong {what}"].append(f"{batch['id']}: {seen}, expected {wanted}")

    def _note(self, what: str, names: Sequence[str]) -> None:
        if names:
            self.faults[what] += names


def _entries(file: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in file.splitlines()]
