"""The answers so far: each once, and whatever an earlier command has written stays."""

from pathlib import Path

from gateway.cli.batch_partial import PartialAnswers


def line(number: int, batch: str = "one") -> bytes:
    return b'{"id": "batch_req_%b_%d", "custom_id": "c"}\n' % (batch.encode(), number)


def test_each_line_is_written_once_as_it_comes(tmp_path: Path) -> None:
    partial = PartialAnswers(tmp_path / "out.jsonl", "batch_one")
    assert (len(partial), partial.path.exists(), partial.missing) == (0, False, ((1, None),))
    partial.add([line(3), line(1)])
    partial.add([line(1), line(4), line(7, "another"), line(9)[:-1], b"not JSON\n", b"[]\n", b'{"id": 1}\n'])
    assert partial.path == tmp_path / "out.jsonl.partial"
    assert partial.path.read_bytes() == line(3) + line(1) + line(4)
    assert partial.missing == ((2, 2), (5, None))
    partial.remove()
    assert not partial.path.exists()


def test_what_an_earlier_command_has_written_stays_but_for_what_broke_off(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.partial"
    path.write_bytes(line(2) + line(5) + line(6)[:20])
    partial = PartialAnswers(tmp_path / "out.jsonl", "batch_one")
    assert (len(partial), path.read_bytes()) == (2, line(2) + line(5))
    partial.add([line(6), line(5)])
    assert path.read_bytes() == line(2) + line(5) + line(6)


def test_answers_of_another_batch_make_room(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.partial").write_bytes(line(1, "another"))
    partial = PartialAnswers(tmp_path / "out.jsonl", "batch_one")
    partial.add([line(2)])
    assert partial.path.read_bytes() == line(2)
