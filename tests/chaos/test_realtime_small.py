"""A realtime session of ten seconds whose tunnel is cut every two; `--part realtime` runs longer."""

from pathlib import Path

from tests.chaos.realtime import CUT_EVERY_S, NUMBERS, PIECES, RealtimeFindings, run_realtime

SECONDS = 10.0


async def test_no_message_is_lost_or_doubled(tmp_path: Path) -> None:
    findings = await run_realtime(SECONDS, tmp_path, print)
    assert findings.wrong() == []
    assert findings.cuts >= SECONDS / CUT_EVERY_S - 1
    assert findings.utterances >= 5


def flawless() -> RealtimeFindings:
    numbers = list(range(2 * PIECES))
    texts = ["".join(f"{each} " for each in numbers[start : start + PIECES]) for start in (0, PIECES)]
    return RealtimeFindings(
        pieces=2 * PIECES, utterances=2, deltas=numbers, transcripts=texts, committed=2, heard=[*numbers]
    )


def test_what_is_lost_doubled_or_reordered_is_found() -> None:
    assert flawless().wrong() == []
    assert 2 * PIECES < NUMBERS
    lost = flawless()
    lost.deltas = lost.deltas[:7] + lost.deltas[8:]
    assert lost.wrong() == ["39 deltas of 40, the first wrong one is number 7"]
    doubled = flawless()
    doubled.heard.insert(3, 3)
    assert doubled.wrong() == ["the engine heard 41 pieces of 40, the first wrong one is number 4"]
    reordered = flawless()
    reordered.transcripts.reverse()
    assert reordered.wrong() == ["2 transcripts of 2, or wrong ones"]
    dropped = flawless()
    dropped.dropped, dropped.committed, dropped.odd = 1, 1, ["error"]
    assert len(dropped.wrong()) == 3
