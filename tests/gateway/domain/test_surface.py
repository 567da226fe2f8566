import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engines.wire import check_path
from gateway.domain.errors import BadRequest, PathTooLong
from gateway.domain.surface import (
    CHAT,
    ENDPOINTS,
    ENGINE,
    PATH_BYTES,
    AddressedPath,
    EngineTarget,
    SurfaceEndpoint,
    engine_target,
    target,
)
from shared.protocol.limits import MODEL_NAME_CHARS
from shared.protocol.routes import FAMILIES, PATHS, ROUTES


def endpoint(path: str) -> SurfaceEndpoint:
    return next(each for each in ENDPOINTS if each.path == path)


def test_a_built_in_path_is_a_constant_whatever_was_written() -> None:
    assert target(CHAT, "/v1/chat/completions", "/v1/chat%2Fcompletions", b"") == EngineTarget(
        "/v1/chat/completions"
    )


def test_the_query_goes_along() -> None:
    found = target(CHAT, CHAT.path, CHAT.path, b"api-version=1&x=%20")
    assert found == EngineTarget("/v1/chat/completions?api-version=1&x=%20")


def test_a_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(PathTooLong):
        target(CHAT, CHAT.path, CHAT.path, b"a" * 9000)


def test_a_path_that_agents_would_be_told_too_long_is_refused() -> None:
    raw = "/predictions/llama3:8b"
    query = b"a" * (PATH_BYTES - 1 - len("/predictions/llama3%3A8b"))
    found = target(endpoint("/predictions/"), raw, raw, query)
    assert found is not None
    assert len(found.path) == PATH_BYTES
    with pytest.raises(PathTooLong):
        target(endpoint("/predictions/"), raw, raw, query + b"a")


@pytest.mark.parametrize("query", [b"a=\xff", b"a=\\", b"#a"])
def test_bytes_in_a_query_that_no_url_has_are_refused(query: bytes) -> None:
    with pytest.raises(BadRequest):
        target(CHAT, CHAT.path, CHAT.path, query)


@pytest.mark.parametrize("tail", ["transcriptions", "speech", "voices/list"])
def test_paths_below_audio_are_served(tail: str) -> None:
    path = f"/v1/audio/{tail}"
    assert target(endpoint("/v1/audio/"), path, path, b"") == EngineTarget(path)


@pytest.mark.parametrize("tail", ["", "../models", "a/../b", "a//b", "a\n", "a?b", "é", "a/"])
def test_what_is_no_plain_path_below_audio_is_not_there(tail: str) -> None:
    path = f"/v1/audio/{tail}"
    assert target(endpoint("/v1/audio/"), path, path, b"") is None


@pytest.mark.parametrize(
    ("raw", "model", "path"),
    [
        ("/engines/llama/v1/tokenize", "llama", "/v1/tokenize"),
        ("/engines/meta-llama%2FLlama-3-8B/tokenize", "meta-llama/Llama-3-8B", "/tokenize"),
        ("/engines/qwen2.5:7b/api/show", "qwen2.5:7b", "/api/show"),
        ("/engines/m", "m", "/"),
        ("/engines/m/", "m", "/"),
        ("/engines/m/a/", "m", "/a/"),
        ("/engines/m/a%20b;v=1/.hidden/..x", "m", "/a%20b;v=1/.hidden/..x"),
    ],
)
def test_an_engine_path_names_its_model_and_goes_on_as_it_is(raw: str, model: str, path: str) -> None:
    base = "/".join(raw.split("/")[:3])
    assert engine_target(raw) == EngineTarget(path, model, base)


@pytest.mark.parametrize(
    "raw",
    [
        "/engines/m/../n/x",
        "/engines/m/a/%2e%2e/b",
        "/engines/m/%2E./b",
        "/engines/m/./b",
        "/engines/m/..;x/b",
        "/engines/m/a%2fb",
        "/engines/m/a%5Cb",
        "/engines/m/a\\b",
        "/engines/m/a%252e%252e/b",
        "/engines/m/a%252Fb",
        "/engines/m/a%25252e%25252e/b",
        "/engines/m/%2e%25252e/b",
        "/engines/m/a%2500b",
        "/engines/m/a%252500b",
        "/engines/m/%25.%252e",
        "/engines/m//b",
        "/engines/m/a%00b",
        "/engines/m/a%0d%0ab",
        "/engines/m/%zz",
        "/engines/m/%",
        "/engines//x",
        "/engines/%20/x",
        "/engines/%ff/x",
        "/engines/a%00b/x",
        "/engines/" + "m" * 300,
        "/%65ngines/m/x",
    ],
)
def test_a_path_that_could_be_read_in_two_ways_is_refused(raw: str) -> None:
    with pytest.raises(BadRequest):
        engine_target(raw)


@given(st.text(st.sampled_from("./%2eEfF5cC\\;a"), max_size=30))
def test_no_engine_path_climbs(rest: str) -> None:
    try:
        path = engine_target("/engines/m/" + rest).path
    except BadRequest:
        return
    depth = 0
    for segment in path.split("/"):
        assert segment.lower().replace("%2e", ".") not in (".", "..")
        depth += 1
    assert depth >= 1
    assert "\\" not in path
    assert "%2f" not in path.lower()


@given(
    st.lists(st.sampled_from(["%", "25", "2", "e", ".", "/", "5c", "00", "0a", ";", "a", ":"]), max_size=12),
    st.text(st.sampled_from("\\%/.#?&=a\x7f\x01"), max_size=6),
)
def test_an_agent_takes_whatever_passes(rest: list[str], query: str) -> None:
    raw = "/engines/m/" + "".join(rest)
    try:
        path = target(ENGINE, raw, raw, query.encode()).path  # type: ignore[union-attr]
    except BadRequest:
        return
    assert check_path(path) == path


def test_only_engine_paths_take_any_method() -> None:
    assert "DELETE" in ENGINE.methods
    assert "POST" in CHAT.methods
    assert "GET" not in CHAT.methods


def test_the_surface_has_the_paths_that_agents_know() -> None:
    fixed = {each.path: each.route for each in ENDPOINTS if each.fixed is not None and not each.is_read}
    families = {each.path: each.route for each in ENDPOINTS if each.fixed is None and not each.names_model}
    assert families == dict(FAMILIES)
    below = {path: route for path, route in PATHS.items() if path.startswith(tuple(FAMILIES))}
    assert fixed | below == dict(PATHS)
    assert {each.route for each in ENDPOINTS} == set(ROUTES)


@pytest.mark.parametrize(
    ("raw", "model", "addressed"),
    [
        ("/engines/comfy@gpu-7/prompt", "comfy@gpu-7", AddressedPath("comfy", "gpu-7")),
        ("/engines/a%40b@gpu-7/x", "a@b@gpu-7", AddressedPath("a@b", "gpu-7")),
        ("/engines/a@b%40gpu-7/x", "a@b@gpu-7", None),
        ("/engines/m@Not A Name/x".replace(" ", "%20"), None, None),
        ("/engines/@gpu-7/x", "@gpu-7", None),
        ("/engines/m@/x", "m@", None),
        ("/engines/m/x@gpu-7", "m", None),
    ],
)
def test_an_agent_may_be_named_behind_the_model(
    raw: str, model: str | None, addressed: AddressedPath | None
) -> None:
    if model is None:
        with pytest.raises(BadRequest):
            engine_target(raw)
    else:
        found = engine_target(raw)
        assert (found.model, found.addressed) == (model, addressed)


@pytest.mark.parametrize("name", ["m" * MODEL_NAME_CHARS, "llama[1]", "a*b", "a?b", "{x}", "ä" * 200])
def test_long_names_and_names_with_brackets_are_names(name: str) -> None:
    from urllib.parse import quote

    assert engine_target(f"/engines/{quote(name, safe='')}/x").model == name
