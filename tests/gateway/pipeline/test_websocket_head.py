"""Subprotocols of a client's WebSocket, and the key among them."""

from gateway.pipeline.websocket_head import Subprotocols, read_subprotocols

BROWSER = b"realtime, openai-insecure-api-key.tl-secret , openai-beta.realtime-v1"


def test_a_browsers_key_is_taken_out_of_what_the_engine_is_offered() -> None:
    found = read_subprotocols([(b"host", b"x"), (b"sec-websocket-protocol", BROWSER)])
    assert found.key == "tl-secret"
    assert found.offered == ("realtime", "openai-beta.realtime-v1")


def test_several_fields_are_one_list_and_without_any_there_is_none() -> None:
    found = read_subprotocols([(b"sec-websocket-protocol", b"a"), (b"sec-websocket-protocol", b"b, ,c")])
    assert found == Subprotocols(("a", "b", "c"), None)
    assert read_subprotocols([]).key is None


def test_the_engines_choice_counts_if_the_client_offered_it() -> None:
    offered = Subprotocols(("a", "b"))
    assert offered.chosen("b") == "b"
    assert offered.chosen("c") is None
    assert offered.chosen(None) is None


def test_a_browser_that_sent_its_key_is_always_told_of_a_choice() -> None:
    assert read_subprotocols([(b"sec-websocket-protocol", BROWSER)]).chosen(None) == "realtime"
    alone = read_subprotocols([(b"sec-websocket-protocol", b"openai-insecure-api-key.k")])
    assert alone.chosen(None) == "openai-insecure-api-key.k"
