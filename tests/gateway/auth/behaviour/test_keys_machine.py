"""Whatever is done to keys, the ring lets in whom a plain model of them lets in."""

import contextlib
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.auth import KeyRing
from gateway.domain.errors import Unauthenticated
from gateway.storage import Store
from gateway.storage.errors import NameTaken, UnknownRecord

NAMES = st.sampled_from(["a", "b"])


class Keys(RuleBasedStateMachine):
    """Every secret ever made, and until when it should work."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        directory = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.store = self.stack.enter_context(Store.open(Path(directory) / "state"))
        self.now_s = 1000.0
        self.ring = KeyRing(self.store, lambda: self.now_s)
        self.until_s: dict[str, float] = {}
        self.secrets: dict[str, list[str]] = {}
        """Of the active key of each name, the oldest first."""
        self.ends_s: dict[str, float] = {}

    def teardown(self) -> None:
        self.stack.close()

    @rule(name=NAMES, life_s=st.none() | st.sampled_from([5.0, 50.0]))
    def create(self, name: str, life_s: float | None) -> None:
        try:
            text = self.store.keys.create(name, "t", self.now_s, life_s=life_s)
        except NameTaken:
            assert name in self.secrets
            return
        self.ends_s[name] = float("inf") if life_s is None else self.now_s + life_s
        self.secrets[name] = [text]
        self.until_s[text] = self.ends_s[name]

    @rule(name=NAMES, overlap_s=st.sampled_from([0.0, 10.0, 100.0]))
    def rotate(self, name: str, overlap_s: float) -> None:
        try:
            _, text = self.store.keys.rotate(name, overlap_s, self.now_s)
        except UnknownRecord:
            assert self.now_s >= self.ends_s.get(name, 0.0)
            return
        for older in self.secrets[name][:-1]:
            self.until_s[older] = 0.0
        self.until_s[self.secrets[name][-1]] = min(self.ends_s[name], self.now_s + overlap_s)
        self.secrets[name].append(text)
        self.until_s[text] = self.ends_s[name]

    @rule(name=NAMES)
    def revoke(self, name: str) -> None:
        with contextlib.suppress(UnknownRecord):
            self.store.keys.revoke(name, self.now_s)
        self.until_s |= dict.fromkeys(self.secrets.pop(name, []), 0.0)
        self.ends_s.pop(name, None)

    @rule(seconds=st.sampled_from([1.0, 5.0, 10.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def the_ring_lets_in_whom_it_should(self) -> None:
        for text, until_s in self.until_s.items():
            try:
                self.ring.authenticate(text)
            except Unauthenticated:
                let_in = False
            else:
                let_in = True
            assert let_in is (self.now_s < until_s)


Keys.TestCase.settings = settings(max_examples=4, stateful_step_count=20, deadline=None)
TestKeys = Keys.TestCase
