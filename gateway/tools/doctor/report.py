"""How results are shown: lines for people, JSON for programs."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.tools.doctor.runner import CheckResult
from shared.process.checks import CheckState
from shared.process.excerpt import printable

WIDTH = 110
_INDENT = 32
_SHOWN = {
    CheckState.OK: "ok",
    CheckState.WARNING: "WARNING",
    CheckState.FAILED: "FAILED",
    CheckState.SKIPPED: "skipped",
}


def well(results: Sequence[CheckResult]) -> bool:
    """Nothing failed."""
    return all(each.state is not CheckState.FAILED for each in results)


def as_json(groups: Mapping[str, Sequence[CheckResult]], version: str) -> dict[str, Any]:
    """``groups`` are the results by what they are about: ``gateway``, ``agent``, ``way``."""
    everything = [each for results in groups.values() for each in results]
    return {
        "ok": well(everything),
        "version": version,
        "counts": {str(state): sum(each.state is state for each in everything) for state in CheckState},
        "checks": [
            {
                "id": each.id,
                "on": group,
                "state": str(each.state),
                "words": printable(each.outcome.words),
                "remedy": printable(each.outcome.remedy, keep="\n") or None,
                "took_s": round(each.took_s, 3),
                "facts": dict(each.outcome.facts),
            }
            for group, results in groups.items()
            for each in results
        ],
    }


def as_lines(groups: Mapping[str, Sequence[CheckResult]], titles: Mapping[str, str]) -> Iterator[str]:
    """``titles`` says what each group is about."""
    for group, results in groups.items():
        yield printable(titles[group])
        for each in results:
            head = f"  {_SHOWN[each.state]:<8} {each.id:<{_INDENT - 12}} "
            yield from _filled(head, printable(each.outcome.words))
            for line in printable(each.outcome.remedy, keep="\n").splitlines():
                yield from _filled(" " * _INDENT + "> ", line)
        yield ""
    everything = [each for results in groups.values() for each in results]
    counts = {state: sum(each.state is state for each in everything) for state in CheckState}
    yield ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def _filled(head: str, text: str) -> list[str]:
    behind = " " * (_INDENT if head.strip() != ">" else _INDENT + 2)
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=behind, break_on_hyphens=False
    ) or [head.rstrip()]
