"""The oracle excuses what could not be helped, and nothing else."""

from dataclasses import replace

from tests.chaos.asks import Ask, Special
from tests.chaos.checks import Failure
from tests.chaos.journal import RECOVERY_S, Journal
from tests.chaos.oracle import LATE_S, Oracle, Ruling
from tests.chaos.schedule import EVERYBODY, GATEWAY, Fault, Kind
from tests.chaos.town import build_town

ASK = Ask(1, "beta", "chat", "what", 6, True, True, 10.0)
FRAME = Failure("frame", "engine_failed")
REFUSED = Failure("connection", "ClientConnectorError")


def _oracle(*faults: tuple[Kind, str, float, float]) -> Oracle:
    journal = Journal(build_town(demo=True))
    for kind, target, from_s, until_s in faults:
        journal.begin(Fault(from_s, kind, target), from_s).until_s = until_s
    return Oracle(journal)


def _rule(oracle: Oracle, failure: Failure = FRAME, ask: Ask = ASK, from_s: float = 100.0) -> Ruling:
    return oracle.rule(ask, failure, from_s, from_s + 5)


def test_an_error_is_never_excused_by_faults_of_links() -> None:
    oracle = _oracle((Kind.LINK_CUT, EVERYBODY, 101, 101), (Kind.LINK_VANISH, "beta-1", 101, 101))
    assert _rule(oracle) is Ruling.MOVABLE


def test_an_error_is_not_excused_by_a_lost_worker_while_another_was_there() -> None:
    assert _rule(_oracle((Kind.AGENT_KILL, "beta-1", 101, 103))) is Ruling.MOVABLE


def test_an_error_is_excused_when_at_some_moment_nobody_was_there() -> None:
    both = ((Kind.AGENT_KILL, "beta-1", 101, 103), (Kind.ENGINE_ERROR, "beta-2", 102, 104))
    assert _rule(_oracle(*both)) is Ruling.NOBODY_ELSE
    assert _rule(_oracle((Kind.BLACKOUT, "beta", 101, 103))) is Ruling.NOBODY_ELSE
    assert _rule(_oracle((Kind.BLACKOUT, "alpha", 101, 103))) is Ruling.MOVABLE


def test_a_worker_counts_as_away_for_a_while_after_its_fault_and_not_longer() -> None:
    end_s = 100 - RECOVERY_S["engine"]
    assert _rule(_oracle((Kind.BLACKOUT, "beta", 90, end_s + 1))) is Ruling.NOBODY_ELSE
    assert _rule(_oracle((Kind.BLACKOUT, "beta", 80, end_s - 1))) is Ruling.MOVABLE


def test_workers_that_are_away_one_after_the_other_excuse_nothing() -> None:
    oracle = _oracle((Kind.ENGINE_CUT, "beta-1", 80, 94), (Kind.ENGINE_CUT, "beta-2", 101, 103))
    assert _rule(oracle) is Ruling.MOVABLE


def test_what_cannot_be_continued_may_fail_in_the_stream_when_its_worker_may_have_failed() -> None:
    special = replace(ASK, special=Special.SEVERAL)
    killed = _oracle((Kind.AGENT_KILL, "beta-1", 101, 103))
    assert _rule(killed, ask=special) is Ruling.NOT_CONTINUABLE
    assert _rule(killed, Failure("head", "engine_failed", 502), ask=special) is Ruling.MOVABLE
    assert _rule(_oracle((Kind.LINK_CUT, "beta-1", 101, 101)), ask=special) is Ruling.MOVABLE
    assert _rule(_oracle((Kind.AGENT_KILL, "alpha-1", 101, 103)), ask=special) is Ruling.MOVABLE


def test_connections_may_break_only_while_the_gateway_restarts() -> None:
    restart = (Kind.GATEWAY_KILL, GATEWAY, 101.0, 102.0)
    assert _rule(_oracle(restart), REFUSED) is Ruling.GATEWAY_RESTART
    assert _rule(_oracle(restart), REFUSED, from_s=200) is Ruling.UNDOCUMENTED
    assert _rule(_oracle((Kind.BLACKOUT, "beta", 101, 103)), REFUSED) is Ruling.UNDOCUMENTED


def test_a_restart_excuses_what_is_documented_for_it_and_no_other_error() -> None:
    oracle = _oracle((Kind.GATEWAY_DRAIN, GATEWAY, 101, 103))
    assert _rule(oracle, Failure("head", "shutting_down", 503)) is Ruling.GATEWAY_RESTART
    assert _rule(oracle, Failure("head", "model_not_found", 404)) is Ruling.MOVABLE
    assert _rule(oracle, FRAME) is Ruling.MOVABLE


def test_a_code_that_is_documented_nowhere_is_never_excused() -> None:
    oracle = _oracle((Kind.BLACKOUT, "beta", 101, 103), (Kind.GATEWAY_KILL, GATEWAY, 101, 102))
    assert _rule(oracle, Failure("head", "oops", 500)) is Ruling.UNDOCUMENTED


def test_a_worker_that_lacks_the_route_is_nobody_for_it() -> None:
    oracle = _oracle((Kind.AGENT_KILL, "beta-1", 101, 103))
    assert _rule(oracle, ask=replace(ASK, route="messages")) is Ruling.NOBODY_ELSE
    unsupported = Failure("head", "not_found_error", 404)
    assert _rule(oracle, unsupported, replace(ASK, route="messages")) is Ruling.NOBODY_ELSE
    assert _rule(_oracle(), unsupported, replace(ASK, route="messages")) is Ruling.MOVABLE
    assert _rule(oracle, ask=replace(ASK, route="completions")) is Ruling.MOVABLE


def test_an_answer_is_late_when_somebody_could_have_given_it_much_earlier() -> None:
    oracle = _oracle((Kind.ENGINE_FREEZE, "beta-1", 100, 175))
    assert oracle.is_late(ASK, 100, 101 + LATE_S + ASK.lasts_s)
    assert not oracle.is_late(ASK, 100, 99 + LATE_S + ASK.lasts_s)
    assert not oracle.is_late(replace(ASK, special=Special.SEVERAL), 100, 175)


def test_lateness_is_excused_when_nobody_else_was_there_or_the_gateway_was_away() -> None:
    frozen = (Kind.ENGINE_FREEZE, "beta-1", 100.0, 175.0)
    assert not _oracle(frozen, (Kind.AGENT_KILL, "beta-2", 120, 121)).is_late(ASK, 100, 175)
    assert not _oracle(frozen, (Kind.GATEWAY_KILL, GATEWAY, 120, 121)).is_late(ASK, 100, 175)
