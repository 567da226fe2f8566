"""Streams of one kind, cut anywhere and gone on with elsewhere: the answer is the undisturbed one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from tests.gateway.dispatch.recovery.engines import Engine, Model, Style
from tests.gateway.dispatch.recovery.going_on import Client, Seen, cuts


@dataclass(frozen=True)
class StreamKind:
    """What a route's engine writes and how clients read it."""

    route: str
    engine: Engine
    seen: Callable[[bytes], Seen]

    def whole(self, model: Model, body: Mapping[str, Any], style: Style | None = None) -> Seen:
        """The undisturbed answer."""
        return self.seen(self.engine(model, body, style or Style()))

    def check_every_cut(
        self, model: Model, body: Mapping[str, Any], style: Style, way: str, following: Style
    ) -> None:
        """At every byte, with an engine that writes as ``following`` to go on."""
        whole = self.whole(model, body, style)
        for cut, client in cuts(self.engine(model, body, style), lambda: Client(self.route, body, way)):
            begun = bool(client.got)
            client.go_on(lambda asked: self.engine(model, asked, following))
            assert self.seen_of(client, whole, begun) == whole, cut
            assert client.record.complete

    def check_three_cuts(
        self,
        data: st.DataObject,
        body: Mapping[str, Any],
        styles: list[Style],
        way: str,
        *,
        most_bytes: int,
        after: bytes = b"",
    ) -> None:
        """Any text in any pieces: first at any byte behind ``after``, then twice within ``most_bytes``."""
        texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)
        model = Model(tuple(data.draw(st.lists(texts, min_size=1, max_size=8))))
        stream = self.engine(model, body, data.draw(st.sampled_from(styles)))
        client = Client(self.route, body, way, data.draw(st.sampled_from([None, 1, 2, 3])))
        client.feed(stream[: data.draw(st.integers(max(1, stream.index(after)), len(stream)))])
        begun = bool(client.got)
        for cut in (data.draw(st.integers(0, most_bytes)), data.draw(st.integers(0, most_bytes)), None):
            following = data.draw(st.sampled_from(styles))
            client.go_on(lambda asked: self.engine(model, asked, following), cut)  # noqa: B023
        whole = self.seen(stream)
        assert self.seen_of(client, whole, begun) == whole

    def seen_of(self, client: Client, whole: Seen, begun: bool) -> Seen:
        """What the client has. Where nothing had ``begun`` the ids are the next engine's and do not count."""
        seen = self.seen(client.got)
        return seen if begun else replace(seen, ids=whole.ids)
