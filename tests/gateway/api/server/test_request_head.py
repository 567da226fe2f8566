"""What of a request's head is refused, and which id a request gets."""

import os
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.server.request_head import (
    FIELDS,
    ONCE,
    CheckedHead,
    check_head,
    new_request_id,
    request_id,
)
from gateway.domain.errors import RequestError
from gateway.pipeline.client_head import HeadFacts

HOST = (b"host", b"x")


def checked(url: bytes, fields: Sequence[tuple[bytes, bytes]], version: str = "1.1") -> RequestError | None:
    return check_head(url, fields, dict(fields), version)


def code(
    *fields: tuple[bytes, bytes], url: bytes = b"/v1/models", version: str = "1.1", host: bool = True
) -> str | None:
    error = checked(url, [*([HOST] if host else []), *fields], version)
    return None if error is None else error.code


def test_an_ordinary_head_is_fine() -> None:
    assert code((b"authorization", b"Bearer x"), (b"accept", b"a"), (b"accept", b"b")) is None


@pytest.mark.parametrize("name", sorted(ONCE - {b"host"}))
def test_a_field_that_decides_something_comes_once(name: bytes) -> None:
    value = b"chunked" if name == b"transfer-encoding" else b"1"
    assert code((name, value)) is None
    assert code((name, value), (name, value)) == "repeated_header"


def test_a_second_host_or_none_is_refused() -> None:
    assert code(HOST) == "repeated_header"
    assert code(host=False) == "missing_host"
    assert code(host=False, version="1.0") is None


@pytest.mark.parametrize(
    "url", [b"http://evil/v1/models", b"*", b"evil:80", b"v1/models", b"/v1/models#x", b""]
)
def test_only_paths_are_targets(url: bytes) -> None:
    assert code(url=url) == "invalid_path"


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"identity", b"chunked, chunked", b"", b"chunked;q=1"])
def test_no_coding_but_chunked_is_taken(coding: bytes) -> None:
    assert code((b"transfer-encoding", coding)) == "unsupported_transfer_encoding"


def test_chunks_belong_to_http_1_1() -> None:
    assert code((b"transfer-encoding", b"chunked"), version="1.0") == "unsupported_transfer_encoding"
    assert code((b"transfer-encoding", b" CHUNKED\t")) is None


@pytest.mark.parametrize("same", [True, False])
def test_fields_are_counted(same: bool) -> None:
    fields = [(b"x" if same else b"x%d" % number, b"") for number in range(FIELDS)]
    assert code(*fields) == "headers_too_large"
    assert code(*fields[1:]) is None


@settings(max_examples=40)
@given(
    st.binary(max_size=40), st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=9)
)
def test_any_head_is_taken_or_refused_with_a_400(url: bytes, fields: list[tuple[bytes, bytes]]) -> None:
    error = checked(url, fields)
    assert error is None or error.status == 400


@pytest.mark.parametrize("given", [b"abc", b"req_1", b"7f3c-a/b:c=d+e@f", b"a" * 128])
def test_a_sane_id_is_kept(given: bytes) -> None:
    assert request_id({b"x-request-id": given}) == given.decode()


@pytest.mark.parametrize("given", [b"", b"a b", b"a\nb", b"a" * 129, b"\xff", b"-a", b'"', b"a\n"])
def test_any_other_is_replaced(given: bytes) -> None:
    assert request_id({b"x-request-id": given}).startswith("req_")


def test_ids_are_unlike_each_other() -> None:
    assert len({new_request_id() for _ in range(1000)}) == 1000


def test_a_process_that_was_forked_has_ids_of_its_own() -> None:
    new_request_id()  # further ones are made with it
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.write(writing, new_request_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert new_request_id().encode() != os.read(reading, 64)
    os.close(reading)
    os.close(writing)


LINE = (b"POST", b"/v1/models", "1.1")
KEY, LENGTH = (b"authorization", b"Bearer x"), (b"content-length", b"5")


def head_of(*headers: tuple[bytes, bytes]) -> CheckedHead:
    facts = HeadFacts("/v1/models")
    return CheckedHead(
        LINE, headers, dict(headers), {}, facts, expects_continue=False, keep_alive=True, upgrading=False
    )


@pytest.mark.parametrize("headers", [(HOST, KEY), (HOST, LENGTH, KEY)])
def test_a_head_is_the_same_with_equal_fields(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    head = head_of(*headers)
    assert head.is_same(*LINE, list(headers))
    assert head.is_same(*LINE, list(headers))
    assert head.fields == dict(headers)


def test_a_head_is_the_same_with_another_length() -> None:
    head = head_of(HOST, LENGTH, KEY)
    before = head.fields
    assert head.is_same(*LINE, [HOST, (b"content-length", b"77"), KEY])
    assert head.fields == {**before, b"content-length": b"77"}
    assert before[b"content-length"] == b"5", "the fields of the request before are its own"


@pytest.mark.parametrize(
    "headers",
    [
        [HOST, LENGTH, (b"authorization", b"Bearer y")],
        [HOST, (b"content-length", b"6"), (b"authorization", b"Bearer y")],
        [HOST, (b"x-length", b"5"), KEY],
        [HOST, LENGTH],
        [HOST, LENGTH, KEY, (b"accept", b"a")],
        [HOST, KEY, LENGTH],
    ],
)
def test_a_head_is_another_one_with_other_fields(headers: list[tuple[bytes, bytes]]) -> None:
    assert not head_of(HOST, LENGTH, KEY).is_same(*LINE, headers)


@pytest.mark.parametrize(
    "line", [(b"PUT", *LINE[1:]), (b"POST", b"/v1/models?a", "1.1"), (b"POST", b"/v1/models", "1.0")]
)
def test_a_head_is_another_one_with_another_line(line: tuple[bytes, bytes, str]) -> None:
    assert not head_of(HOST, KEY).is_same(*line, [HOST, KEY])
