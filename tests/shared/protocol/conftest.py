"""Fixtures of the tests of the protocol."""

import pytest

from tests.support.session_pair import SessionPair


@pytest.fixture
def pair() -> SessionPair:
    return SessionPair()
