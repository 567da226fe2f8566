"""What is printed of results."""

from gateway.tools.doctor.report import WIDTH, as_json, as_lines, well
from gateway.tools.doctor.runner import CheckResult
from shared.process.checks import failed, passed, warned

RESULTS = {
    "way": [
        CheckResult("dns", passed("It has 1 address.", addresses=["192.0.2.1"]), 0.01),
        CheckResult("body-limit", failed("It is " + "too " * 40 + "short.", "In nginx: a;\nCaddy: b"), 0.5),
        CheckResult("clock", warned("It is \x1b[31mlate.", "Set it."), 0.1),
    ]
}


def test_lines_have_state_id_words_and_below_them_what_to_do() -> None:
    lines = list(as_lines(RESULTS, {"way": "The way to https://a.example"}))
    assert lines[0] == "The way to https://a.example"
    assert lines[1].split() == ["ok", "dns", "It", "has", "1", "address."]
    assert [line.strip() for line in lines if line.strip().startswith(">")] == [
        "> In nginx: a;",
        "> Caddy: b",
        "> Set it.",
    ]
    assert lines[-1] == "1 ok, 1 warning, 1 failed"
    assert max(map(len, lines)) <= WIDTH


def test_nothing_can_steer_a_terminal() -> None:
    assert "\x1b" not in "".join(as_lines(RESULTS, {"way": "w"}))


def test_json_has_each_check_and_whether_all_is_well() -> None:
    found = as_json(RESULTS, "1.2.3")
    assert (found["ok"], found["version"]) == (False, "1.2.3")
    assert found["counts"] == {"ok": 1, "warning": 1, "failed": 1, "skipped": 0}
    assert found["checks"][0] == {
        "id": "dns",
        "on": "way",
        "state": "ok",
        "words": "It has 1 address.",
        "remedy": None,
        "took_s": 0.01,
        "facts": {"addresses": ["192.0.2.1"]},
    }


def test_a_warning_is_no_failure() -> None:
    assert well(RESULTS["way"][2:])
    assert not well(RESULTS["way"])
