"""What reaches an engine, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engines.backend import BackendFailed, BackendRefused
from agent.engines.settings import base_url
from agent.engines.wire import (
    PATH_BYTES,
    RequestFormat,
    check_method,
    check_path,
    request_fields,
    response_headers,
)
from shared.protocol import limits
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/models", "/v1/chat/completions?x=1&y=..%2f", "/a//b", "/v1/a:b@c", "/caf%C3%A9", "/x..y/..."],
)
def test_a_plain_path_passes_as_it_is(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "v1/models",
        "http://evil/v1",
        "//evil/v1",
        "/v1/../admin",
        "/..",
        "/v1/%2e%2e/admin",
        "/v1/%2E./admin",
        "/v1/..%2fadmin",
        "/v1/%252e%252e/admin",
        "/v1/..%5cadmin",
        "/v1\\..\\x",
        "/a b",
        "/a\r\nhost: evil",
        "/a\x00",
        "/a%00b",
        "/a%0d%0ab",
        "/a#b",
        "/caf\u00e9",
        "/" + "a" * PATH_BYTES,
    ],
)
def test_a_path_that_could_leave_the_engine_is_refused(path: str) -> None:
    with pytest.raises(BackendRefused):
        check_path(path)


def test_what_no_engine_is_sent_does_not_count_as_a_lack_of_slots() -> None:
    """A gateway spares an agent that refuses (REFUSED), and asks the others."""
    for refused in (
        lambda: check_path("/\\"),
        lambda: check_method("TRACE"),
        lambda: request_fields((("", ""),)),
    ):
        with pytest.raises(BackendRefused) as caught:
            refused()
        assert caught.value.code is ErrorCode.PROTOCOL_ERROR


@given(st.text(max_size=60))
def test_whatever_passes_stays_on_the_engine(path: str) -> None:
    from yarl import URL

    try:
        check_path(path)
    except BackendRefused:
        return
    url = URL("http://127.0.0.1:8000" + path, encoded=True)
    assert (url.host, url.port) == ("127.0.0.1", 8000)
    assert url.raw_path_qs == path or path.endswith("?")


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "BREW", "", "GET /x"])
def test_other_methods_are_refused(method: str) -> None:
    with pytest.raises(BackendRefused):
        check_method(method)


def test_hop_by_hop_headers_and_credentials_stay_here() -> None:
    headers = (
        ("host", "gateway.example"),
        ("connection", "keep-alive, X-Private"),
        ("x-private", "1"),
        ("transfer-encoding", "chunked"),
        ("te", "trailers"),
        ("upgrade", "websocket"),
        ("proxy-authorization", "Basic x"),
        ("content-length", "5"),
        ("accept-encoding", "gzip"),
        ("authorization", "Bearer sk-tl-client"),
        ("x-api-key", "sk-tl-client"),
        ("content-type", "application/json"),
        ("x-request-id", "r1"),
    )
    assert request_fields(headers) == ("content-type: application/json\r\nx-request-id: r1\r\n", 5)
    head = RequestFormat("http://engine", "key").head("GET", "/v1/models", headers)[0].lower()
    assert head.count(b"authorization: ") == 1
    assert b"\r\nauthorization: bearer key\r\n" in head


@pytest.mark.parametrize("header", [("x", "a\r\nb: c"), ("x y", "a"), ("", "a"), ("x\n", "a")])
def test_a_header_that_could_end_another_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(BackendRefused):
        request_fields((header,))


def test_no_value_of_a_field_becomes_another_field_of_a_websocket() -> None:
    """A byte 0x85 is a line end to Python, and in UTF-8 a half of many letters."""
    headers = (("x-name", "\xc3\x85sa"), ("x", "a\x85authorization: Bearer other"), ("empty", ""))
    _, fields, _ = RequestFormat("http://engine", "key").websocket("GET", "/ws", headers)
    assert fields == [*headers, ("authorization", "Bearer key")]
    assert RequestFormat("http://engine", None).websocket("GET", "/ws", ())[1] == []


def test_the_bytes_of_a_field_reach_the_engine_as_they_came() -> None:
    """A gateway reads them as Latin-1."""
    headers = (("x-name", "Zoë Åsa".encode().decode("latin-1")), ("x", "\xe9"))
    begins, _ = RequestFormat("http://engine", None).head("GET", "/x", headers)
    assert begins.endswith(b"\r\nx-name: Zo\xc3\xab \xc3\x85sa\r\nx: \xe9\r\n")
    with pytest.raises(BackendRefused):
        request_fields((("x", "\u0161"),))  # no byte


def test_a_length_is_read_or_refused() -> None:
    assert request_fields(()) == ("", None)
    for named in ((), (("Connection", "content-length, close"),)):
        assert request_fields((("content-length", "12"), ("Content-Length", "12"), *named)) == ("", 12)
    for bad in ("-1", "1e3", "+5", "", "0x10", "1" * 16):
        with pytest.raises(BackendRefused):
            request_fields((("content-length", bad),))
    with pytest.raises(BackendRefused):
        request_fields((("content-length", "1"), ("content-length", "2")))


def test_a_head_is_the_same_however_often_it_comes_and_its_length_its_own() -> None:
    form = RequestFormat("http://engine", None)
    fields = (("content-type", "application/json"), ("x", "a"))
    begins = form.head("POST", "/v1/x", fields)[0]
    for length in (5, 12, 5):
        assert form.head("POST", "/v1/x", (*fields, ("content-length", str(length)))) == (begins, length)
    assert form.head("POST", "/v1/y", (*fields, ("content-length", "5")))[0] != begins
    assert form.head("POST", "/v1/x", (("x", "b"), ("content-length", "5")))[0] != begins
    for bad in ("-1", "", "1" * 16):
        with pytest.raises(BackendRefused):
            form.head("POST", "/v1/x", (*fields, ("content-length", bad)))


def test_lengths_that_contradict_are_refused_however_often_they_come() -> None:
    form = RequestFormat("http://engine", None)
    twice = (("content-length", "5"), ("content-length", "5"))
    for _ in range(2):
        assert form.head("POST", "/v1/x", twice)[1] == 5
        with pytest.raises(BackendRefused):
            form.head("POST", "/v1/x", (*twice[:1], ("content-length", "6")))


def test_few_heads_are_remembered_and_no_long_one() -> None:
    form = RequestFormat("http://engine", None)
    for number in range(1000):
        form.head("POST", "/v1/x", (("x", str(number)), ("content-length", "5")))
    form.head("POST", "/v1/x", (("x", "a" * 2000), ("content-length", "5")))
    assert 0 < len(form._heads) <= 64
    assert all(len(begins) <= 1024 for begins in form._heads.values())


def test_a_responses_headers_keep_their_order_and_repeat() -> None:
    raw = [
        (b"Set-Cookie", b"a=1"),
        (b"Connection", b"close"),
        (b"set-cookie", b"b=2"),
        (b"X-M", "é".encode("latin-1")),
    ]
    assert response_headers(raw) == (("set-cookie", "a=1"), ("set-cookie", "b=2"), ("x-m", "é"))


def test_a_path_is_checked_however_often_it_comes() -> None:
    form = RequestFormat("http://engine", None)
    for _ in range(3):
        assert form.head("POST", "/v1/x", ())[0].startswith(b"POST /v1/x HTTP/1.1\r\n")
        with pytest.raises(BackendRefused):
            form.head("POST", "/v1/../x", ())
        with pytest.raises(BackendRefused):
            form.head("TRACE", "/v1/x", ())
    for number in range(1000):
        form.head("POST", f"/v1/{number}", ())
    assert len(form._starts) <= 64


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ((b"x", b" a\x0b "), "a"),
        ((b"x", b"a\x0bb"), None),
        ((b"x", b"a\x00"), None),
        ((b"x y", b"a"), None),
        ((b"", b"a"), None),
        ((b"x", "é".encode("latin-1")), "é"),
    ],
)
def test_a_field_of_a_response_is_one_or_a_failure(field: tuple[bytes, bytes], told: str | None) -> None:
    raw = [(b"a", b"b"), field]
    if told is None:
        with pytest.raises(BackendFailed, match="malformed"):
            response_headers(raw)
    else:
        assert response_headers(raw) == (("a", "b"), ("x", told))


def test_fields_that_a_response_names_for_its_connection_stay_here() -> None:
    raw = [(b"X-Private", b"1\x00"), (b"Connection", b"x-private"), (b"a", b"b")]
    assert response_headers(raw) == (("a", "b"),)


def test_too_many_or_too_long_response_headers_are_the_engines_failure() -> None:
    with pytest.raises(BackendFailed):
        response_headers([(b"x", b"y")] * (limits.HEADERS + 1))
    with pytest.raises(BackendFailed):
        response_headers([(b"x", b"y" * limits.HEADER_BYTES)])


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://localhost:11434/v1", "http://localhost:11434"),
        ("https://gpu.example/llm/v1/", "https://gpu.example/llm"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_engines_url_is_brought_to_its_base(url: str, base: str) -> None:
    assert base_url(url) == base


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://x", "http://", "http://u:p@x", "http://x?y", "http://x#y", "http://x:99999"],
)
def test_what_is_no_engines_url_is_an_error(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        base_url(url)


@pytest.mark.parametrize(
    ("base", "said", "told"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/docs/?a=1", "/docs/?a=1"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "/"),
        ("http://engine", "HTTP://ENGINE:80/docs/", "/docs/"),
        ("http://engine/llm", "http://engine/llm/docs/", "/docs/"),
        ("http://engine/llm", "/llm/docs/", "/docs/"),
        ("http://engine/llm", "/docs/", "http://engine/docs/"),
        ("http://engine/llm", "http://engine/llmx/", "http://engine/llmx/"),
        ("http://engine", "docs/", "docs/"),
        ("http://engine", "//engine/docs/", "//engine/docs/"),
        ("http://engine", "https://engine/docs/", "https://engine/docs/"),
        ("http://engine", "http://engine:8001/", "http://engine:8001/"),
        ("http://engine", "http://user@engine/", "http://user@engine/"),
        ("http://engine", "http://engine:x/", "http://engine:x/"),
        ("http://engine", "http://evil.example/", "http://evil.example/"),
    ],
)
def test_an_address_on_the_engine_itself_becomes_a_path_of_it(base: str, said: str, told: str) -> None:
    raw = [(b"Location", said.encode()), (b"x", b"http://engine/")]
    assert RequestFormat(base, None).response_headers(raw) == (("location", told), ("x", "http://engine/"))


def test_headers_that_go_no_further_count_with_the_others() -> None:
    with pytest.raises(BackendFailed):
        response_headers([(b"connection", b"a," * (limits.HEADER_BYTES // 2))])


_NAMES = (
    b"Date",
    b"content-type",
    b"Connection",
    b"keep-alive",
    b"x-private",
    b"x y",
    b"",
    b"transfer-encoding",
)
_VALUES = (b"a", b" b\t", b"\x0b", b"x\x00", b"keep-alive", b"close, X-Private", b"\xe9", b"", b"y" * 300)


@given(st.lists(st.tuples(st.sampled_from(_NAMES), st.sampled_from(_VALUES)), max_size=6))
def test_remembered_fields_are_what_looking_at_all_of_them_gives(raw: list[tuple[bytes, bytes]]) -> None:
    form = RequestFormat("http://engine", None)
    try:
        told = response_headers(raw)
    except BackendFailed:
        with pytest.raises(BackendFailed):
            form.response_headers(raw)
    else:
        assert form.response_headers(raw) == told


def test_a_responses_ordinary_fields_are_bounded_together() -> None:
    form = RequestFormat("http://engine", None)
    longest = [(b"x", b"y" * 255)] * limits.HEADERS
    assert len(form.response_headers(longest)) == limits.HEADERS
    for raw in ([*longest, (b"x", b"")], [*longest[1:], (b"x", b"y" * 256)]):
        with pytest.raises(BackendFailed):
            form.response_headers(raw)


def test_a_responses_fields_are_no_more_than_its_head_carries_when_they_are_quoted() -> None:
    form = RequestFormat("http://engine", None)
    for size_bytes, too_much in ((150, False), (200, True), (255, True)):
        raw = [(b"x", b'"' * size_bytes)] * (limits.HEADERS - 1)
        assert len(raw) * size_bytes < limits.HEADER_BYTES
        if too_much:
            with pytest.raises(BackendFailed):
                form.response_headers(raw)
        else:
            payload = ResponseHead(200, form.response_headers(raw)).to_payload()
            assert len(payload) <= limits.CONTROL_PAYLOAD_BYTES
