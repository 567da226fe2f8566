"""Header fields are collected as a parser reads them, in C as in Python."""

import gc
import weakref
from types import ModuleType

import pytest
from httptools import HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from shared.speedups import NATIVE, header_collector, native

IMPLEMENTATIONS = [pytest.param(header_collector, id="python")]
if NATIVE:
    IMPLEMENTATIONS.append(pytest.param(native, id="native"))

both = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
compares = pytest.mark.skipif(not NATIVE, reason="the native functions were not built")

Field = tuple[bytes, bytes]


class TooMuch(Exception):
    """What ``otherwise`` raises."""


@both
def test_a_parsers_fields_are_there_with_names_in_lower_case(implementation: ModuleType) -> None:
    class Protocol:
        on_header = implementation.HeaderCollector(lambda *field: None, 10, 100)

    HttpRequestParser(Protocol()).feed_data(b"GET / HTTP/1.1\r\nHost: Here\r\nx-a:1\r\nX-A: 2\r\n\r\n")
    assert Protocol.on_header.fields == [(b"host", b"Here"), (b"x-a", b"1"), (b"x-a", b"2")]


@both
def test_names_of_one_byte_stay_what_they_are_elsewhere(implementation: ModuleType) -> None:
    name, line = b"AB", b"AB"
    collector = implementation.HeaderCollector(lambda *field: None, 10, 100)
    collector(name[:1], b"")
    assert collector.fields == [(b"a", b"")]
    assert line[:1] == bytes([65]), "the interpreter has one object for all bytes objects of one byte"


@both
def test_what_is_over_a_bound_goes_elsewhere(implementation: ModuleType) -> None:
    others = list[Field]()
    collector = implementation.HeaderCollector(lambda *field: others.append(field), 2, 5)
    for field in ((b"A", b"12345"), (b"B", b"1234"), (b"C", b""), (b"D", b"")):
        collector(*field)
    assert others == [(b"A", b"12345"), (b"D", b"")]
    assert collector.fields == [(b"b", b"1234"), (b"c", b"")]


@both
def test_all_go_elsewhere_while_it_is_not_open(implementation: ModuleType) -> None:
    others = list[Field]()
    collector = implementation.HeaderCollector(lambda *field: others.append(field), 2, 5)
    collector.open = False
    collector(b"A", b"1")
    collector.open = True
    collector(b"B", b"2")
    assert (others, collector.fields) == ([(b"A", b"1")], [(b"b", b"2")])


@both
def test_its_fields_can_be_those_of_another_head(implementation: ModuleType) -> None:
    collector = implementation.HeaderCollector(lambda *field: None, 1, 5)
    collector(b"A", b"1")
    before, collector.fields = collector.fields, []
    collector(b"B", b"2")
    assert (before, collector.fields) == ([(b"a", b"1")], [(b"b", b"2")])


@both
def test_what_is_raised_elsewhere_is_raised(implementation: ModuleType) -> None:
    def refuse(name: bytes, value: bytes) -> None:
        raise TooMuch

    collector = implementation.HeaderCollector(refuse, 0, 5)
    with pytest.raises(TooMuch):
        collector(b"A", b"1")
    assert collector.fields == []


@both
def test_a_closed_one_keeps_nobody_and_drops_what_would_go_elsewhere(implementation: ModuleType) -> None:
    class Owner:
        def __init__(self) -> None:
            self.collector = implementation.HeaderCollector(self.take, 0, 0)

        def take(self, name: bytes, value: bytes) -> None:
            raise TooMuch

    gc.disable()
    try:
        owner = Owner()
        gone = weakref.ref(owner)
        owner.collector.close()
        owner.collector(b"A", b"1")
        del owner
        assert gone() is None
    finally:
        gc.enable()


@compares
@pytest.mark.parametrize("field", [(b"a",), (b"a", b"b", b"c"), ("a", b"b"), (b"a", None)])
def test_the_native_one_takes_two_bytes_objects_only(field: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        native.HeaderCollector(lambda *field: None, 1, 1)(*field)  # type: ignore[arg-type]


@compares
def test_the_native_ones_fields_are_a_list() -> None:
    collector = native.HeaderCollector(lambda *field: None, 1, 1)
    with pytest.raises(TypeError):
        collector.fields = ()  # type: ignore[assignment]
    with pytest.raises(TypeError):
        del collector.fields


@compares
@given(
    st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8), st.booleans()), max_size=12),
    st.integers(0, 8),
    st.integers(0, 12),
)
def test_both_do_the_same(fields: list[tuple[bytes, bytes, bool]], most: int, most_bytes: int) -> None:
    seen = []
    for implementation in (header_collector, native):
        others = list[Field]()
        collector = implementation.HeaderCollector(
            lambda *field, others=others: others.append(field), most, most_bytes
        )
        for name, value, is_open in fields:
            collector.open = is_open
            collector(name, value)
        seen.append((collector.fields, others))
    assert seen[0] == seen[1]
