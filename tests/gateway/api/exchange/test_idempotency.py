import pytest

from gateway.api.exchange.idempotency import idempotency_key_of
from gateway.domain.errors import BadRequest


def test_an_idempotency_key_is_visible_text() -> None:
    assert idempotency_key_of({}) is None
    assert idempotency_key_of({b"idempotency-key": b" abc-1 "}) == "abc-1"
    for wrong in (b"", b"a b", b"\xff", b"x" * 256):
        with pytest.raises(BadRequest):
            idempotency_key_of({b"idempotency-key": wrong})
