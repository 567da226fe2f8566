"""Join tokens as text."""

import base64
import string
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.identity import JoinToken
from shared.protocol.errors import JoinTokenInvalid
from tests.support.identities import CHECKED_TOKEN, GATEWAY, TOKEN

TEXT = TOKEN.encode()


@given(
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=32, max_size=32),
)
def test_a_token_reads_back_as_it_was_written(token_id: bytes, secret: bytes, fingerprint: bytes) -> None:
    token = JoinToken(token_id, secret, fingerprint)
    assert JoinToken.decode(token.encode()) == token


def test_white_space_around_a_token_does_not_matter() -> None:
    assert JoinToken.decode(f"  {TEXT}\r\n") == TOKEN


def test_new_tokens_differ_and_carry_the_fingerprint() -> None:
    first, second = JoinToken.new(GATEWAY.fingerprint), JoinToken.new(GATEWAY.fingerprint)
    assert first.id != second.id
    assert first.secret != second.secret
    assert first.fingerprint == GATEWAY.fingerprint


@given(st.integers(min_value=4, max_value=len(TEXT) - 1))
def test_a_token_cut_off_anywhere_is_said_to_be_cut_off(length: int) -> None:
    with pytest.raises(JoinTokenInvalid, match="cut off when copied"):
        JoinToken.decode(TEXT[:length])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("hello", "begins with tlj_"),
        ("sk-tl-abcdef", "client API key"),
        (TEXT + TEXT[4:], "pasted twice"),
        (TEXT[:40] + "\n" + TEXT[40:], "space or line break"),
        (TEXT[:-1] + "+", "contains '\\+'"),
        (TEXT[:-1] + "é", "contains '\\\\xe9'"),
        ("tlj_" + "B" + TEXT[5:], "version"),
    ],
)
def test_a_token_that_is_wrong_says_how(text: str, complaint: str) -> None:
    with pytest.raises(JoinTokenInvalid, match=complaint):
        JoinToken.decode(text)


@given(st.integers(4, len(TEXT) - 1), st.sampled_from(string.ascii_letters + string.digits + "-_"))
def test_a_token_with_a_changed_character_is_said_to_be_damaged(place: int, letter: str) -> None:
    """Wherever it is: those of the version and of the mark that there is a checksum are noticed later."""
    text = CHECKED_TOKEN.encode()
    changed = text[:place] + letter + text[place + 1 :]
    if changed == text:
        assert JoinToken.decode(changed) == CHECKED_TOKEN
    elif base64.urlsafe_b64decode(changed[4:])[6:9] != CHECKED_TOKEN.id[5:]:
        with suppress(JoinTokenInvalid):  # the version's
            assert not JoinToken.decode(changed).has_checksum
    else:
        with pytest.raises(JoinTokenInvalid, match=r"is damaged|version"):
            JoinToken.decode(changed)


def test_a_token_of_an_earlier_version_has_no_checksum_and_is_read_all_the_same() -> None:
    token = JoinToken.decode(TEXT)
    assert token == TOKEN
    assert not token.has_checksum
    assert JoinToken.new(GATEWAY.fingerprint).has_checksum


def test_an_agent_of_an_earlier_version_reads_a_token_with_a_checksum() -> None:
    """As it did: the version, and three pieces of which each may be anything."""
    raw = base64.urlsafe_b64decode(CHECKED_TOKEN.encode().removeprefix("tlj_"))
    assert (len(CHECKED_TOKEN.encode()), raw[0]) == (80, 1)
    assert (raw[9:25], raw[25:]) == (CHECKED_TOKEN.secret, CHECKED_TOKEN.fingerprint)


@given(st.text(max_size=120))
def test_no_text_makes_decoding_fail_otherwise(text: str) -> None:
    for candidate in (text, "tlj_" + text):
        with suppress(JoinTokenInvalid):
            JoinToken.decode(candidate)


def test_complaints_and_repr_never_show_the_secret() -> None:
    with pytest.raises(JoinTokenInvalid) as caught:
        JoinToken.decode(TEXT[:-1])
    assert TEXT[10:30] not in str(caught.value)
    assert repr(TOKEN.secret) not in repr(TOKEN)


def test_what_the_gateway_stores_of_a_token_is_not_its_secret() -> None:
    assert TOKEN.verifier() == JoinToken.decode(TEXT).verifier()
    other_id = JoinToken(bytes(8), TOKEN.secret, TOKEN.fingerprint)
    assert TOKEN.verifier() not in (TOKEN.secret, other_id.verifier())
