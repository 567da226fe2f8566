import orjson

from tests.chaos.jobs.lines import BatchLine
from tests.chaos.jobs.replies import ReplyFindings

LINES = {line.custom_id: line for line in (BatchLine("a", "m", "first", 3), BatchLine("b", "m", "second", 2))}


def result(name: str, job: str = "job-1", sequence: int = 1, text: str | None = None) -> bytes:
    said = LINES[name].text if text is None else text
    body = {"choices": [{"message": {"content": said}}]}
    return orjson.dumps({"id": name, "job": job, "sequence": sequence, "type": "result", "body": body})


def found(*replies: bytes) -> ReplyFindings:
    findings = ReplyFindings(LINES)
    for reply in replies:
        findings.take(reply)
    return findings


def test_a_reply_to_each_message_is_right() -> None:
    findings = found(result("a"), result("b"))
    assert findings.is_complete
    assert findings.wrong == []


def test_a_reply_that_comes_again_is_dropped_by_its_sequence() -> None:
    findings = found(result("a"), result("a"), result("b"))
    assert (findings.repeated, findings.wrong) == (1, [])


def test_a_second_job_or_a_second_result_is_doubled_in_effect() -> None:
    assert found(result("a"), result("a", job="job-2"), result("b")).doubled == ["a"]
    assert found(result("a"), result("a", sequence=2), result("b")).doubled == ["a"]


def test_what_has_no_reply_is_lost() -> None:
    findings = found(result("a"))
    assert (findings.is_complete, findings.lost, findings.answered) == (False, ["b"], 1)
    assert findings.wrong == ["1 lost: ['b']"]


def test_other_texts_errors_and_replies_to_nothing_are_wrong() -> None:
    failed = orjson.dumps({"id": "b", "job": "j", "sequence": 1, "type": "result", "status": "failed"})
    findings = found(result("a", text="else"), failed, orjson.dumps({"id": "z"}))
    assert len(findings.wrong_answers) == 2
    assert findings.others["replies to nothing"] == 1
    findings.note("dead letters", 0)
    assert "dead letters" not in findings.others
