import pytest

from gateway.api.server.request_id import new_request_id, request_id


@pytest.mark.parametrize("given", [b"abc", b"req_1", b"7f3c-a/b:c=d+e@f", b"a" * 128])
def test_a_sane_id_is_kept(given: bytes) -> None:
    assert request_id({b"x-request-id": given}) == given.decode()


@pytest.mark.parametrize("given", [b"", b"a b", b"a\nb", b"a" * 129, b"\xff", b"-a", b'"', b"a\n"])
def test_any_other_is_replaced(given: bytes) -> None:
    assert request_id({b"x-request-id": given}).startswith("req_")


def test_ids_are_unlike_each_other() -> None:
    assert len({new_request_id() for _ in range(100)}) == 100
