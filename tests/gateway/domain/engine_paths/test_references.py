"""An answer leads its client to its own engine or nowhere."""

from urllib.parse import urljoin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.engine_paths import client_reference, rewritten_headers
from gateway.domain.errors import EngineError
from gateway.domain.surface import EngineTarget, engine_target

AT = EngineTarget("/docs/a?x=1", "meta/llama", "/engines/meta%2Fllama")
"""What the engine was asked for."""
OUTSIDE = EngineTarget("/v1/chat/completions")
BASE = "/engines/meta%2Fllama"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("/docs/", f"{BASE}/docs/"),
        ("/", f"{BASE}/"),
        ("b", f"{BASE}/docs/b"),
        ("./b?y=2#part", f"{BASE}/docs/b?y=2#part"),
        ("../b", f"{BASE}/b"),
        ("?y=2", f"{BASE}/docs/a?y=2"),
        ("#part", f"{BASE}/docs/a?x=1#part"),
        ("/v2/../v1/models", f"{BASE}/v1/models"),
        ("/a/.", f"{BASE}/a/"),
        (" /docs/\t", f"{BASE}/docs/"),
        ("/caf%C3%A9?next=https://x.example/", f"{BASE}/caf%C3%A9?next=https://x.example/"),
    ],
)
def test_an_address_on_the_engine_is_told_as_its_client_reaches_it(said: str, told: str) -> None:
    assert client_reference(said, AT) == told
    assert client_reference(said, OUTSIDE) is None


@pytest.mark.parametrize(
    "said",
    [
        "",
        "https://evil.example/",
        "HTTPS:evil.example",
        "//evil.example/",
        "///evil.example/",
        "/\\evil.example/",
        "\\\\evil.example/",
        "/..//evil.example/",
        "../../x",
        "/../x",
        "/a/../../x",
        "/%2e%2e/x",
        "/a/%2E./x",
        "/a%2f..%2f..%2fx",
        "/a/..;/x",
        "/a//b",
        "javascript:alert(1)",
        "data:text/html,x",
        "mailto:a@b",
        "a:b",
        "/a b",
        "/a\tb",
        "/a\nb",
        "/caf\u00e9",
        "/a\x00",
        "/%zz",
        "/a<b>",
        '/a"b',
        "/" + "a" * 9000,
    ],
)
def test_what_leads_elsewhere_or_could_be_read_so_is_none(said: str) -> None:
    assert client_reference(said, AT) is None


@given(st.text(st.sampled_from("/.%2eE\\:?#;@ab\t h"), max_size=30) | st.text(max_size=30))
def test_whatever_an_engine_says_leads_to_that_engine_or_nowhere(said: str) -> None:
    told = client_reference(said, AT)
    if told is None:
        return
    assert told.startswith(f"{BASE}/")
    followed = urljoin("https://gateway.example/engines/meta%2Fllama/docs/a?x=1", told)
    assert followed.startswith(f"https://gateway.example{BASE}/")
    place = told.partition("#")[0].partition("?")[0]
    assert engine_target(place).model == "meta/llama"


REDIRECTS = [300, 301, 302, 303, 305, 307, 308]


@pytest.mark.parametrize("status", REDIRECTS)
@pytest.mark.parametrize("target", [OUTSIDE, None])
def test_a_redirect_of_a_built_in_path_is_an_engines_error(status: int, target: EngineTarget | None) -> None:
    for location in ("/docs/", "https://evil.example/", "/v1/models"):
        with pytest.raises(EngineError) as caught:
            rewritten_headers(status, (("location", location),), target)
        assert (caught.value.status, caught.value.code) == (502, "engine_redirect")


@pytest.mark.parametrize("status", REDIRECTS)
def test_a_redirect_within_the_engine_is_rewritten_and_one_that_leaves_it_refused(status: int) -> None:
    headers = (("x", "y"), ("location", "/docs/"))
    assert rewritten_headers(status, headers, AT) == (("x", "y"), ("location", f"{BASE}/docs/"))
    with pytest.raises(EngineError) as caught:
        rewritten_headers(status, (("location", "//evil.example/"),), AT)
    assert "evil" not in caught.value.message


def test_one_of_two_locations_that_leaves_is_enough() -> None:
    headers = (("location", "/docs/"), ("location", "https://evil.example/"))
    with pytest.raises(EngineError):
        rewritten_headers(302, headers, AT)


@pytest.mark.parametrize("status", [200, 201, 202, 304, 404])
def test_addresses_of_other_answers_are_rewritten_or_left_out(status: int) -> None:
    for name in ("location", "content-location", "operation-location"):
        assert rewritten_headers(status, ((name, "b"),), AT) == ((name, f"{BASE}/docs/b"),)
        for target in (AT, OUTSIDE, None):
            assert rewritten_headers(status, ((name, "https://evil.example/"),), target) == ()
        assert rewritten_headers(status, ((name, "b"),), OUTSIDE) == ()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("5", "5"),
        ("0; url=/docs/", f"0; url={BASE}/docs/"),
        ("0;URL='/docs/'", f"0; url={BASE}/docs/"),
        ('3.5, url = "/docs/"', f"3; url={BASE}/docs/"),
        ("0; /docs/", f"0; url={BASE}/docs/"),
        ("0; url=https://evil.example/", None),
        ("0; url=//evil.example/", None),
        ("0; url='/docs/", None),
        ("now", None),
    ],
)
def test_a_refresh_is_rewritten_or_left_out(said: str, told: str | None) -> None:
    found = rewritten_headers(200, (("refresh", said),), AT)
    assert found == (() if told is None else (("refresh", told),))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('</a?page=2>; rel="next"', f'<{BASE}/a?page=2>; rel="next"'),
        ("</a>; rel=next, <https://evil.example/>; rel=preload", f"<{BASE}/a>; rel=next"),
        ('<https://evil.example/>; rel="a, b", <b>;rel=last', f"<{BASE}/docs/b>;rel=last"),
        ('</a>; rel=next; anchor="https://evil.example/"', None),
        ("<https://evil.example/>; rel=preconnect", None),
        ('</a>; rel="x', None),
        ("</a", None),
    ],
)
def test_links_are_rewritten_one_by_one(said: str, told: str | None) -> None:
    found = rewritten_headers(200, (("link", said),), AT)
    assert found == (() if told is None else (("link", told),))
    assert rewritten_headers(200, (("link", said),), OUTSIDE) == ()


def test_an_answer_without_addresses_is_the_same_object() -> None:
    headers = (("content-type", "text/plain"),)
    assert rewritten_headers(200, headers, AT) is headers
    assert rewritten_headers(304, headers, OUTSIDE) is headers


def test_an_engine_that_is_asked_by_its_agent_stays_that_agents() -> None:
    asked = engine_target("/engines/llama@gpu-1/docs")
    assert client_reference("/docs/", asked) == "/engines/llama@gpu-1/docs/"
