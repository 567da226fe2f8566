"""A wall clock that jumps: it only matters for certificates, and only while it is wrong."""

import itertools
import re
from pathlib import Path

import orjson
import pytest

import agent
from shared.handshake import Renewal, Welcome
from shared.identity import issue_certificate
from shared.link.membership import Membership
from shared.protocol.errors import CertificateOutOfDate, ErrorCode, HandshakeRejected
from shared.protocol.frames import FrameType
from tests.support.identities import GATEWAY, TOKEN, WALL_S, gateway_side

DAY_S = 86_400.0
SERIALS = itertools.count(7)


def member(directory: Path) -> Membership:
    made = Membership.open(directory, join=TOKEN.encode(), name=None, default_name="host-1")
    made.welcomed(shake(made, WALL_S))
    return made


def shake(membership: Membership, wall_s: float) -> Welcome:
    """A handshake in which the gateway gives a new certificate, and the agent believes it is ``wall_s``."""
    handshake, gateway = membership.handshake("trunkline test"), gateway_side()
    hello = gateway.receive_hello(handshake.receive_challenge(gateway.challenge()), WALL_S)
    certificate = issue_certificate(GATEWAY, hello.name, hello.public_key, next(SERIALS), WALL_S).der
    return handshake.receive_answer(
        FrameType.WELCOME, gateway.welcome("s", 1, certificate, None, 10.0), wall_s
    )


@pytest.mark.parametrize("wrong_s", [-400 * DAY_S, 400 * DAY_S])
def test_a_certificate_that_seems_out_of_date_is_kept_and_doubted(tmp_path: Path, wrong_s: float) -> None:
    agent_here = member(tmp_path)
    kept = (tmp_path / "membership.json").read_bytes()
    welcome = shake(agent_here, WALL_S + wrong_s)
    assert "check the clocks" in welcome.doubt
    agent_here.welcomed(welcome)
    assert (tmp_path / "membership.json").read_bytes() != kept


@pytest.mark.parametrize("wrong_s", [-DAY_S / 2, DAY_S / 2])
def test_half_a_day_wrong_is_not_worth_a_word(tmp_path: Path, wrong_s: float) -> None:
    assert shake(member(tmp_path), WALL_S + wrong_s).doubt == ""


# --- certificates that end before the one they came for: one clock was wrong, or life is shorter now ---

EXPIRED = HandshakeRejected(ErrorCode.UNAUTHENTICATED, "the certificate expired", 60.0)
UNKNOWN = HandshakeRejected(ErrorCode.UNAUTHENTICATED, "no record of this certificate")
LIFE_S = 90 * DAY_S


class Wall:
    """A time of day that is set as one likes."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Pair:
    """An agent and its gateway, each with a clock of its own."""

    def __init__(self, directory: Path, agent_s: float = 0.0, join: bool = True) -> None:
        self.directory = directory
        self.clock = Wall(WALL_S + agent_s)
        self.agent = self.opened(TOKEN.encode() if join else None)

    def opened(self, join: str | None = None) -> Membership:
        return Membership.open(self.directory, join=join, name=None, default_name="host-1", wall=self.clock)

    def certificate(self, gateway_s: float, life_s: float = LIFE_S, name: str = "host-1") -> bytes:
        key = self.agent.handshake("x")._public_key
        return issue_certificate(GATEWAY, name, key, next(SERIALS), WALL_S + gateway_s, life_s).der

    def dial(self, gateway_s: float, gives: bytes | None = None) -> bytes | None:
        """With a gateway whose clock is that far from the true one; the certificate shown. Raises
        HandshakeRejected as the gateway's answer."""
        handshake, gateway = self.agent.handshake("x"), gateway_side()
        challenge = handshake.receive_challenge(gateway.challenge())
        try:
            hello = gateway.receive_hello(challenge, WALL_S + gateway_s)
        except CertificateOutOfDate as error:
            raise HandshakeRejected(error.code, str(error), error.retry_after_s) from error
        answer = gateway.welcome("s", 1, gives, None, 10.0)
        self.agent.welcomed(handshake.receive_answer(FrameType.WELCOME, answer, self.clock()))
        return None if hello.certificate is None else hello.certificate.der

    def dials(self, gateway_s: float) -> bytes | None:
        """As often as the agent says that there is another way; the certificate that did."""
        while True:
            try:
                return self.dial(gateway_s)
            except HandshakeRejected as error:
                if not self.agent.try_otherwise(error):
                    raise


@pytest.mark.parametrize("agent_s", [0.0, -400 * DAY_S, 400 * DAY_S, -30 * DAY_S, 100 * DAY_S])
@pytest.mark.parametrize("restarted", [False, True])
def test_an_agent_comes_back_with_what_it_had_whichever_clock_was_wrong(
    tmp_path: Path, agent_s: float, restarted: bool
) -> None:
    pair = Pair(tmp_path, agent_s)
    good = pair.certificate(0.0)
    pair.dial(0.0, good)
    for behind_s in (-400 * DAY_S, -399 * DAY_S, -350 * DAY_S):  # a gateway of an earlier release
        pair.dial(behind_s, pair.certificate(behind_s))
    if restarted:
        pair.agent = pair.opened()
    assert pair.dials(1.0) == good
    assert pair.dial(2.0) == good, "from then on at once"
    assert pair.opened().handshake("x")._certificate == good


def test_what_ends_sooner_is_not_shown_while_the_own_clock_agrees_with_what_is_held(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    good = pair.certificate(0.0)
    pair.dial(0.0, good)
    pair.dial(-400 * DAY_S, pair.certificate(-400 * DAY_S))
    assert pair.dial(0.0) == good
    shorter = pair.certificate(60.0, 7 * DAY_S)
    pair.dial(60.0, shorter)
    assert pair.dial(61.0) == shorter, "an operator may want them to live shorter"


def test_a_clock_of_the_agents_that_is_behind_or_ahead_costs_it_no_renewal(tmp_path: Path) -> None:
    for wrong_s in (-400 * DAY_S, -30 * DAY_S, 30 * DAY_S, 400 * DAY_S):
        pair = Pair(tmp_path / str(wrong_s), wrong_s)
        pair.dial(0.0, pair.certificate(0.0))
        for lives in range(1, 8):
            at_s = lives * LIFE_S * 0.7
            pair.clock.now_s = WALL_S + wrong_s + at_s
            fresh = pair.certificate(at_s)
            if lives % 2:
                pair.agent.renew(Renewal(1, fresh))
            else:
                pair.dial(at_s, fresh)
            assert pair.dials(at_s + 1) == fresh
        assert (pair.directory / "membership.json").stat().st_size < 8000


@pytest.mark.parametrize("to_s", [-400 * DAY_S, 400 * DAY_S])
def test_a_jump_of_the_agents_clock_changes_nothing_of_what_it_shows(tmp_path: Path, to_s: float) -> None:
    pair = Pair(tmp_path)
    good = pair.certificate(0.0)
    pair.dial(0.0, good)
    pair.clock.now_s += to_s
    assert pair.dial(1.0) == good
    worn = pair.certificate(LIFE_S * 0.7)
    pair.agent.renew(Renewal(1, worn))
    pair.clock.now_s -= to_s
    assert pair.dial(LIFE_S * 0.7 + 1) == worn


def test_a_gateway_that_is_ahead_is_shown_what_it_made_and_later_too(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.dial(0.0, pair.certificate(0.0))
    ahead = pair.certificate(400 * DAY_S)
    pair.agent.renew(Renewal(1, ahead))
    assert pair.dial(400 * DAY_S) == ahead, "it would take no other"
    assert pair.dial(0.0) == ahead


def test_a_gateway_that_refuses_what_has_not_begun_is_shown_what_has(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    good = pair.certificate(0.0)
    pair.dial(0.0, good)
    pair.agent.renew(Renewal(1, pair.certificate(400 * DAY_S)))
    assert pair.agent.try_otherwise(EXPIRED), "one of an earlier release, whose clock is right again"
    assert pair.dial(1.0) == good


def test_an_earlier_certificate_is_shown_under_its_own_name(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    good = pair.certificate(0.0)
    pair.dial(0.0, good)
    pair.clock.now_s -= 400 * DAY_S
    pair.agent.renew(Renewal(1, pair.certificate(-400 * DAY_S, name="host-2")))
    assert pair.agent.name == "host-2"
    assert pair.dials(1.0) == good
    assert pair.agent.name == "host-1"
    again = pair.opened()
    assert (again.name, again.handshake("x")._certificate) == ("host-1", good)
    pair.agent.renew(Renewal(1, pair.certificate(2.0, name="host-2")))
    assert pair.agent.name == "host-2", "the gateway says so again"


def test_refused_for_its_dates_with_nothing_better_the_newest_is_shown_again(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.dial(0.0, pair.certificate(0.0))
    pair.clock.now_s += LIFE_S * 0.7
    newest = pair.certificate(LIFE_S * 0.7)
    pair.dial(LIFE_S * 0.7, newest)
    pair.agent = pair.opened()
    assert not pair.agent.try_otherwise(EXPIRED), "what went before ended sooner"
    assert pair.dial(LIFE_S) == newest


def after_a_clock_behind(directory: Path) -> tuple[Pair, bytes, bytes]:
    """A pair, the good certificate, and the one that is shown first."""
    pair = Pair(directory, -400 * DAY_S)
    good = pair.certificate(0.0)
    pair.dial(0.0, good)
    bad = pair.certificate(-400 * DAY_S)
    pair.dial(-400 * DAY_S, bad)
    pair.agent = pair.opened()
    return pair, good, bad


def test_what_becomes_of_an_earlier_certificate_is_not_what_the_gateway_says_of_the_agent(
    tmp_path: Path,
) -> None:
    pair, good, bad = after_a_clock_behind(tmp_path)
    for _ in range(3):  # once a minute
        assert pair.agent.try_otherwise(EXPIRED)
        assert pair.agent.handshake("x")._certificate == good
        assert not pair.agent.try_otherwise(UNKNOWN)
        assert pair.agent.verdict(UNKNOWN) is EXPIRED, "it comes again, as it would without"
        assert pair.agent.handshake("x")._certificate == bad


def test_a_revocation_counts_whatever_was_shown(tmp_path: Path) -> None:
    pair, _, _ = after_a_clock_behind(tmp_path)
    revoked = HandshakeRejected(ErrorCode.REVOKED, "revoked")
    assert not pair.agent.try_otherwise(revoked)
    assert pair.agent.try_otherwise(EXPIRED)
    assert not pair.agent.try_otherwise(revoked)
    assert pair.agent.verdict(revoked) is revoked


def test_only_dates_bring_an_earlier_certificate_up(tmp_path: Path) -> None:
    pair, _, _ = after_a_clock_behind(tmp_path)
    assert not pair.agent.try_otherwise(UNKNOWN)


def test_a_token_is_used_only_when_no_earlier_certificate_does(tmp_path: Path) -> None:
    pair, good, bad = after_a_clock_behind(tmp_path)
    pair.agent = pair.opened(TOKEN.encode())
    assert pair.agent.try_otherwise(EXPIRED)
    assert not pair.agent.joining
    assert pair.agent.handshake("x")._certificate == good
    assert pair.agent.try_otherwise(EXPIRED)
    assert pair.agent.joining
    assert pair.agent.try_otherwise(UNKNOWN)
    assert not pair.agent.joining
    assert pair.agent.handshake("x")._certificate == bad


def test_a_record_without_earlier_certificates_or_with_damaged_ones_is_read(tmp_path: Path) -> None:
    pair, _, bad = after_a_clock_behind(tmp_path)
    path = tmp_path / "membership.json"
    value = orjson.loads(path.read_bytes())
    junk: object
    for junk in (["AAAA"], [5], "x", None, [[]], {"a": 1}, ["!"]):
        path.write_bytes(orjson.dumps({**value, "former_certificates": junk}))
        again = pair.opened()
        assert again.handshake("x")._certificate == bad
        assert not again.try_otherwise(EXPIRED)
    del value["former_certificates"]
    path.write_bytes(orjson.dumps(value))
    assert pair.opened().handshake("x")._certificate == bad


def test_nothing_else_in_the_agent_looks_at_the_wall_clock() -> None:
    """But for ``created``, which OpenAI's answers carry, and the times in the log."""
    looks = [
        f"{path.name}: {line.strip()}"
        for path in Path(agent.__file__).parent.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"time\.time\(|datetime\.|time_ns\(", line)
    ]
    assert {look.partition(": ")[2] for look in looks} <= {"created=int(time.time()),"}, looks
