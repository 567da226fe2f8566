"""A wall clock that jumps: it only matters for certificates, and only while it is wrong."""

import itertools
import re
from pathlib import Path

import pytest

import agent
from agent.membership import Membership
from shared.frames import FrameType
from shared.handshake import Welcome
from shared.identity import issue_certificate
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


def test_nothing_else_in_the_agent_looks_at_the_wall_clock() -> None:
    """But for ``created``, which OpenAI's answers carry, and the times in the log."""
    looks = [
        f"{path.name}: {line.strip()}"
        for path in Path(agent.__file__).parent.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"time\.time\(|datetime\.|time_ns\(", line)
    ]
    assert {look.partition(": ")[2] for look in looks} <= {"created=int(time.time()),"}, looks
