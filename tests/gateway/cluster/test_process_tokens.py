"""Tokens of processes: for one path of one process, for a short time, from members only."""

import pytest

from gateway.cluster.process_tokens import (
    TOKEN_S,
    BadProcessToken,
    check_token,
    is_signed,
    make_token,
    sign_answer,
)

KEY, OTHER = b"k" * 32, b"o" * 32
TARGET, NOW_S = "/cluster/b/agents", 1_800_000_000.0
TOKEN = make_token(KEY, "b", TARGET, NOW_S)


@pytest.mark.parametrize("later_s", [-TOKEN_S + 1, 0.0, TOKEN_S - 1])
def test_a_token_of_a_member_counts_for_a_while_though_clocks_are_known_differently(later_s: float) -> None:
    check_token(KEY, TOKEN, "b", TARGET, NOW_S + later_s)


@pytest.mark.parametrize("later_s", [-TOKEN_S, TOKEN_S, 3600.0, -3600.0])
def test_a_token_of_another_time_counts_no_more(later_s: float) -> None:
    with pytest.raises(BadProcessToken, match="too old"):
        check_token(KEY, TOKEN, "b", TARGET, NOW_S + later_s)


@pytest.mark.parametrize(
    ("key", "process", "target"),
    [
        (OTHER, "b", TARGET),
        (KEY, "c", TARGET),
        (KEY, "b", "/cluster/b/queue"),
        (KEY, "b", TARGET + "?agent=x"),
        (KEY, "b/", TARGET[1:]),
    ],
)
def test_a_token_counts_for_nothing_else(key: bytes, process: str, target: str) -> None:
    with pytest.raises(BadProcessToken, match="another gateway, or for something else"):
        check_token(key, TOKEN, process, target, NOW_S)


@pytest.mark.parametrize(
    "token",
    ["", "~", "~~", "inf~~", f"9{TOKEN}", TOKEN[:-1], TOKEN.upper(), f"{TOKEN}~x", "ü" * 20, "x" * 9999],
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(BadProcessToken):
        check_token(KEY, token, "b", TARGET, NOW_S)


def test_no_two_tokens_are_the_same() -> None:
    assert make_token(KEY, "b", TARGET, NOW_S) != TOKEN


def test_an_answer_is_vouched_for_by_members_only_and_only_for_what_was_asked() -> None:
    signature = sign_answer(KEY, TOKEN, b"{}")
    assert is_signed(KEY, TOKEN, b"{}", signature)
    for key, token, body, said in (
        (OTHER, TOKEN, b"{}", signature),
        (KEY, make_token(KEY, "b", TARGET, NOW_S), b"{}", signature),
        (KEY, TOKEN, b"[]", signature),
        (KEY, TOKEN, b"{}", ""),
        (KEY, TOKEN, b"{}", "ü"),
        (KEY, TOKEN, b"{}", TOKEN.rpartition("~")[2]),
    ):
        assert not is_signed(key, token, body, said)
