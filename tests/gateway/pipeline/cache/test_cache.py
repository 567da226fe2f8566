"""What is kept: bounded exactly, the latest used, none beyond its time."""

from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.pipeline.cache.cache import OVERHEAD_BYTES, AnswerCache, CachedAnswer, CacheKey

ROOM_BYTES = 10 * OVERHEAD_BYTES
MOST = 6
KEYS = [CacheKey(tenant, bytes([number])) for tenant in "ab" for number in range(6)]


def entry(size_bytes: int = 10, kept_s: float = 0.0, life_s: float = 10.0) -> CachedAnswer:
    return CachedAnswer((("content-type", "x"),), b"x" * size_bytes, "gpu-7", "v1", kept_s, kept_s + life_s)


def test_an_entry_counts_for_all_it_holds() -> None:
    assert entry(100).size_bytes == OVERHEAD_BYTES + 100 + len("content-typex") + len("gpu-7v1")


def test_ages_are_whole_seconds_and_never_negative() -> None:
    assert [entry(kept_s=5.0).age_s(now) for now in (4.0, 5.9, 8.0)] == [0, 0, 3]


def test_what_is_longer_than_all_the_room_is_not_kept_and_costs_nothing() -> None:
    cache = AnswerCache(ROOM_BYTES, MOST)
    assert cache.put(KEYS[0], entry(), 0.0)
    assert not cache.put(KEYS[1], entry(ROOM_BYTES), 0.0)
    assert cache.get(KEYS[0], 0.0) is not None


def test_only_half_of_the_room_is_made_free_for_what_may_come_to_nothing() -> None:
    cache = AnswerCache(ROOM_BYTES, MOST)
    assert cache.reserve(ROOM_BYTES // 2)
    assert not cache.reserve(1)
    cache.release(1)
    assert cache.reserve(1)


@given(st.lists(st.integers(0, 3), max_size=200))
def test_the_list_of_what_expires_does_not_grow_with_what_is_kept_anew(puts: list[int]) -> None:
    cache = AnswerCache(ROOM_BYTES, MOST)
    for number in puts:
        cache.put(KEYS[number], entry(), 0.0)
    assert len(cache._expiries) <= 2 * len(cache) + 64


class Keeping(RuleBasedStateMachine):
    """A cache beside a plain list of what was kept, the one used longest ago first."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = AnswerCache(ROOM_BYTES, MOST)
        self.model: OrderedDict[CacheKey, CachedAnswer] = OrderedDict()
        self.held: list[int] = []
        self.now = 0.0

    def _size(self) -> int:
        return sum(each.size_bytes for each in self.model.values())

    def _make_room(self, size_bytes: int) -> None:
        while self._size() + sum(self.held) + size_bytes > ROOM_BYTES:
            self.model.popitem(last=False)

    @rule(key=st.sampled_from(KEYS), size_bytes=st.integers(0, 4000), life_s=st.sampled_from([0.0, 1.0, 5.0]))
    def an_answer_is_kept(self, key: CacheKey, size_bytes: int, life_s: float) -> None:
        self._expire()
        kept = entry(size_bytes, self.now, life_s)
        self.model.pop(key, None)
        fits = life_s > 0 and sum(self.held) + kept.size_bytes <= ROOM_BYTES
        assert self.cache.put(key, kept, self.now) == fits
        if fits:
            self._make_room(kept.size_bytes)
            self.model[key] = kept
            while len(self.model) > MOST:
                self.model.popitem(last=False)

    @rule(key=st.sampled_from(KEYS))
    def somebody_asks(self, key: CacheKey) -> None:
        self._expire()
        assert self.cache.get(key, self.now) is self.model.get(key)
        if key in self.model:
            self.model.move_to_end(key)

    @rule(size_bytes=st.integers(1, 3000))
    def an_answer_is_being_collected(self, size_bytes: int) -> None:
        fits = sum(self.held) + size_bytes <= ROOM_BYTES // 2
        assert self.cache.reserve(size_bytes) == fits
        if fits:
            self._make_room(size_bytes)
            self.held.append(size_bytes)

    @precondition(lambda self: self.held)
    @rule()
    def it_is_collected_no_more(self) -> None:
        self.cache.release(self.held.pop())

    @rule(by_s=st.sampled_from([0.5, 1.0, 3.0]))
    def time_passes(self, by_s: float) -> None:
        self.now += by_s

    @invariant()
    def all_is_counted_and_within_bounds(self) -> None:
        kept_bytes = sum(each.size_bytes for each in self.cache._entries.values())
        assert self.cache.kept_bytes == kept_bytes
        assert self.cache.reserved_bytes == sum(self.held)
        assert kept_bytes + self.cache.reserved_bytes <= ROOM_BYTES
        assert len(self.cache) <= MOST

    def _expire(self) -> None:
        for key, kept in list(self.model.items()):
            if kept.expires_s <= self.now:
                del self.model[key]


TestKeeping = Keeping.TestCase
TestKeeping.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
