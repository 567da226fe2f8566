"""Verifying the audit log: every way to tamper with it is found and named."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.observability.audit import AuditFiles, AuditReport, Retention, verify
from gateway.observability.audit.records import (
    START,
    BadChainHead,
    ChainHead,
    decode_head,
    encode_head,
    hash_of,
)
from gateway.observability.audit.segments import HEAD, LOCK, segment_names
from gateway.observability.audit.verify import Anchor
from gateway.storage.errors import StateMissing
from shared.identity import GatewayIdentity, generate_key
from tests.gateway.observability.audit.logs import DAY_S, NOON_S, append, entries, verified

Lines = list[bytes]


@pytest.fixture
def written(tmp_path: Path, identity: GatewayIdentity) -> AuditFiles:
    """Three days: lines 1 to 5, 6 to 10, 11 to 15, each a segment."""
    files = AuditFiles(tmp_path / "audit", lambda: identity)
    for day in range(3):
        append(files, entries(4), NOON_S + day * DAY_S)
    return files


def change(files: AuditFiles, segment: int, how: Callable[[Lines], Lines]) -> None:
    path = files.directory / segment_names(files.directory)[segment]
    path.write_bytes(b"".join(how(path.read_bytes().splitlines(keepends=True))))


def at(number: int, line: Callable[[bytes], bytes]) -> Callable[[Lines], Lines]:
    return lambda lines: [line(each) if n == number else each for n, each in enumerate(lines, 1)]


def test_a_log_as_it_was_written_is_sound(written: AuditFiles, identity: GatewayIdentity) -> None:
    report = verified(written, identity)
    assert (report.findings, report.notes) == ([], [])
    assert (report.lines, report.segments, report.first_seq, report.last_seq) == (15, 3, 1, 15)


TAMPERED: dict[str, tuple[int, Callable[[Lines], Lines], str]] = {
    "changed": (
        1,
        at(3, lambda line: line.replace(b'"n":1', b'"n":7')),
        "22.0001.jsonl line 4: line 8 was changed",
    ),
    "changed, the last of a segment": (
        1,
        at(5, lambda line: line.replace(b'"n":3', b'"n":7')),
        "23.0001.jsonl line 1: line 10 was changed",
    ),
    "changed, the very last": (
        2,
        at(5, lambda line: line.replace(b'"n":3', b'"n":7')),
        "23.0001.jsonl line 5: changed",
    ),
    "made no record": (1, at(3, lambda line: b"nothing\n"), "22.0001.jsonl line 3: changed: it is no record"),
    "removed": (1, lambda lines: [*lines[:2], *lines[3:]], "22.0001.jsonl line 3: line 8 is missing"),
    "several removed": (1, lambda lines: [*lines[:2], *lines[4:]], "line 3: lines 8 to 9 are missing"),
    "reordered": (
        1,
        lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
        "line 4: out of order: line 8",
    ),
    "duplicated": (1, lambda lines: [*lines[:3], lines[2], *lines[3:]], "22.0001.jsonl line 4: duplicated"),
    "repeated later": (1, lambda lines: [*lines, lines[2]], "22.0001.jsonl line 6: out of order: line 8"),
    "truncated": (2, lambda lines: [*lines[:4], lines[4][:-9]], "23.0001.jsonl line 5: truncated"),
    "truncated by a newline": (
        2,
        lambda lines: [*lines[:4], lines[4][:-1]],
        "23.0001.jsonl line 5: truncated",
    ),
    "cut off at the end": (2, lambda lines: lines[:3], "lines 14 to 15 are missing at the end"),
    "emptied": (1, lambda lines: [], "23.0001.jsonl line 1: lines 6 to 10 are missing"),
    "cut off at the beginning": (0, lambda lines: lines[2:], "lines up to 2 are missing at the beginning"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_line_is_found_that_was(written: AuditFiles, identity: GatewayIdentity, name: str) -> None:
    segment, how, said = TAMPERED[name]
    change(written, segment, how)
    findings = verified(written, identity).findings
    assert any(said in finding for finding in findings), findings


@pytest.mark.parametrize(
    ("segment", "said"),
    [
        (0, "lines up to 5 are missing at the beginning"),
        (1, "segment 2026-11-22.0001.jsonl is missing"),
        (2, "lines 11 to 15 are missing at the end, in 2026-11-23.0001.jsonl"),
    ],
)
def test_a_missing_segment_is_found(
    written: AuditFiles, identity: GatewayIdentity, segment: int, said: str
) -> None:
    (written.directory / segment_names(written.directory)[segment]).unlink()
    assert any(said in finding for finding in verified(written, identity).findings)


def test_a_segment_under_another_name_is_found(written: AuditFiles, identity: GatewayIdentity) -> None:
    last = written.directory / segment_names(written.directory)[-1]
    last.rename(last.with_name("2026-11-24.0001.jsonl"))
    (finding,) = verified(written, identity).findings
    assert "this segment was named 2026-11-23.0001.jsonl" in finding


def test_lines_cut_off_stay_missing_when_the_gateway_goes_on(
    written: AuditFiles, identity: GatewayIdentity
) -> None:
    change(written, 2, lambda lines: lines[:3])
    append(written, entries(2), NOON_S + 2 * DAY_S)
    (finding,) = verified(written, identity).findings
    assert "2026-11-23.0002.jsonl line 1: lines 14 to 15 are missing" in finding


def test_a_chain_written_anew_without_the_gateways_key_is_found(
    written: AuditFiles, identity: GatewayIdentity
) -> None:
    for path in written.directory.iterdir():
        path.unlink()
    other = GatewayIdentity(generate_key())
    append(AuditFiles(written.directory, lambda: other), entries(9), NOON_S)
    (finding,) = verified(written, identity).findings
    assert "another key signed it" in finding


def test_a_head_that_is_gone_is_found_also_after_the_gateway_went_on(
    written: AuditFiles, identity: GatewayIdentity
) -> None:
    change(written, 2, lambda lines: lines[:3])
    (written.directory / HEAD).unlink()
    assert "head.json is missing" in verified(written, identity).findings[0]
    append(written, entries(1), NOON_S + 2 * DAY_S)
    (finding,) = verified(written, identity).findings
    assert "may have been cut off or exchanged" in finding


def test_an_older_log_put_back_whole_is_found_by_what_was_written_down(
    written: AuditFiles, identity: GatewayIdentity
) -> None:
    old = {each.name: each.read_bytes() for each in written.directory.iterdir()}
    append(written, entries(3), NOON_S + 2 * DAY_S)
    report = verified(written, identity)
    anchor = Anchor(report.last_seq, report.last_hash)
    keys = [identity.public_key]
    assert not verify(written.directory, keys, [anchor]).findings
    for name, data in old.items():
        (written.directory / name).write_bytes(data)
    assert not verified(written, identity).findings, "as it would be without an anchor"
    (finding,) = verify(written.directory, keys, [anchor]).findings
    assert "line 18, which was written down, is missing" in finding
    append(written, entries(3, kind="other"), NOON_S + 2 * DAY_S)
    (finding,) = verify(written.directory, keys, [anchor]).findings
    assert "is not the one that was written down" in finding


def test_a_line_that_was_written_down_and_deleted_since_vouches_for_nothing(
    tmp_path: Path, identity: GatewayIdentity
) -> None:
    files = AuditFiles(tmp_path / "audit", lambda: identity, Retention(days=1))
    keys, ends = [identity.public_key], [Anchor(0, START)]
    for day in range(3):
        head = append(files, entries(1), NOON_S + day * DAY_S)
        ends.append(Anchor(head.seq, head.hash))
    with files.held(NOON_S) as appender:
        assert len(appender.prune(NOON_S + 3 * DAY_S)) == 2
    nothing, *gone, last = ends
    for each in gone:
        (finding,) = verify(files.directory, keys, [each]).findings
        assert f"line {each.seq}, which was written down, is missing: it was in a segment" in finding
    assert not verify(files.directory, keys, [last]).findings
    assert not verify(files.directory, keys, [nothing]).findings, "an empty log says nothing of what came"


def test_no_log_is_no_sound_log(tmp_path: Path, identity: GatewayIdentity) -> None:
    with pytest.raises(StateMissing):
        verify(tmp_path / "audit", [identity.public_key])


def _forge(head: ChainHead, identity: GatewayIdentity) -> list[bytes]:
    good = encode_head(head, identity)
    return [
        b"",
        b"{}",
        b"[]\n",
        good[:-1],
        good + b" ",
        good.replace(b'"seq":5', b'"seq":4'),
        good.replace(b":", b": "),
    ]


def test_a_head_is_taken_only_as_it_was_signed(identity: GatewayIdentity) -> None:
    head = ChainHead(5, hash_of(b""), "2026-11-21.0001.jsonl", 70, ("ab",))
    assert decode_head(encode_head(head, identity), [identity.public_key]) == head
    for data in _forge(head, identity):
        with pytest.raises(BadChainHead):
            decode_head(data, [identity.public_key])


@pytest.mark.parametrize("depth", [300, 1000])
@pytest.mark.parametrize("name", ["segment", "after"])
def test_a_line_that_says_what_no_text_could_is_found(
    written: AuditFiles, identity: GatewayIdentity, name: str, depth: int
) -> None:
    deep = b"[" * depth + b"]" * depth

    def exchanged(line: bytes) -> bytes:
        return re.sub(rb'"%b":"[^"]*"' % name.encode(), b'"%b":%b' % (name.encode(), deep), line)

    change(written, 1, at(1, exchanged))
    assert any(
        "22.0001.jsonl line 1: " in each and "[…]" in each for each in verified(written, identity).findings
    )


@pytest.mark.parametrize("name", ["seq", "segment", "taken"])
def test_a_head_that_no_gateway_could_write_is_found(
    written: AuditFiles, identity: GatewayIdentity, name: str
) -> None:
    path = written.directory / HEAD
    deep = b"[" * 300 + b"]" * 300
    path.write_bytes(
        re.sub(rb'"%b":[^,}]*' % name.encode(), b'"%b":%b' % (name.encode(), deep), path.read_bytes())
    )
    assert verified(written, identity).findings == [f"{HEAD}: it cannot be read"]
    append(written, entries(1), NOON_S + 2 * DAY_S)
    assert any("when this was written" in each for each in verified(written, identity).findings)


class Whole:
    """A log as bytes, made once: edits are tried on it by the hundred."""

    def __init__(self, directory: Path) -> None:
        self.identity = GatewayIdentity(generate_key())
        files = AuditFiles(directory, lambda: self.identity, Retention(segment_bytes=700))
        for _ in range(4):
            append(files, entries(3), NOON_S)
        self.directory = directory
        self.files = {each.name: each.read_bytes() for each in directory.iterdir() if each.name != LOCK}

    def verified_with(self, name: str, data: bytes) -> AuditReport:
        path = self.directory / name
        path.write_bytes(data)
        try:
            return verify(self.directory, [self.identity.public_key])
        finally:
            path.write_bytes(self.files[name])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole") / "audit")


@settings(max_examples=60)
@given(st.data())
def test_any_single_edit_of_any_byte_of_the_log_is_found(whole: Whole, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(whole.files)))
    before = whole.files[name]
    start = data.draw(st.integers(0, len(before)))
    end = data.draw(st.integers(start, min(len(before), start + 300)))
    put = data.draw(st.one_of(st.binary(max_size=8), st.just(before[start - 5 : start]), st.just(b"\n")))
    after = before[:start] + put + before[end:]
    if after != before:
        report = whole.verified_with(name, after)
        appended_to_the_end = name == sorted(whole.files)[-2] and after.startswith(before)
        assert report.findings or (appended_to_the_end and report.notes), after
