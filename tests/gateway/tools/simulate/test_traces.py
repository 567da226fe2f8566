"""Traces of every format, and what is said of bad ones."""

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import Tier
from gateway.tools.simulate.inputs import BadTrace
from gateway.tools.simulate.traces import TraceFile

DATA = Path(__file__).parents[4] / ".." / "shared" / "data"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
MOONCAKE = '{"timestamp": 5000, "input_length": 1100, "output_length": 6, "hash_ids": [7, 8, 9]}\n'
OWN = '{"at_s": 1.5, "input_tokens": 100, "output_tokens": 20}\n'


def trace(folder: Path, text: str) -> TraceFile:
    path = folder / "trace"
    path.write_text(text)
    return TraceFile(path)


def test_azure_traces_count_from_their_first_request(tmp_path: Path) -> None:
    first, second = trace(tmp_path, AZURE + "2023-11-16 18:17:05.4799600,3,0\n").jobs()
    assert (first.at_s, first.input_tokens, first.output_tokens, first.prefix) == (0.0, 4808, 10, ())
    assert second.at_s == pytest.approx(1.5)
    assert second.output_tokens == 1


def test_mooncake_traces_keep_the_blocks_that_are_whole(tmp_path: Path) -> None:
    read = trace(tmp_path, MOONCAKE + "\n" + MOONCAKE.replace("5000", "5250"))
    first, second = read.jobs()
    assert (first.at_s, first.input_tokens, first.prefix) == (0.0, 1100, (7, 8))
    assert second.at_s == 0.25
    assert read.block_tokens == 512


def test_own_traces_say_more(tmp_path: Path) -> None:
    line = (
        '{"at_s": 3, "input_tokens": 100, "output_tokens": 0, "prefix": [1, 2, 3], "max_tokens": 50, '
        '"tier": "batch", "tenant": "t", "session": "s", "deadline_s": 30, "kind": "k"}\n'
    )
    read = trace(tmp_path, '{"block_tokens": 32}\n' + OWN + line)
    job = list(read.jobs())[1]
    assert read.block_tokens == 32
    assert (job.at_s, job.output_tokens, job.prefix, job.max_tokens) == (1.5, 1, (1, 2, 3), 50)
    assert (job.tier, job.tenant, job.session_key, job.deadline_s, job.kind) == (
        Tier.BATCH,
        "t",
        "s",
        30,
        "k",
    )


def test_a_trace_is_read_as_far_as_it_is_asked_for(tmp_path: Path) -> None:
    read = trace(tmp_path, OWN * 3 + "nonsense\n")
    assert len(list(itertools.islice(read.jobs(), 3))) == 3
    assert [job.at_s for job in itertools.islice(read.jobs(), 1)] == [0.0]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 0, "nothing in it"),
        (AZURE.partition("\n")[0] + "\n", 0, "no request in it"),
        ('{"block_tokens": 16}\n\n', 0, "no request in it"),
        ("hello\n", 1, "no trace begins so"),
        ("TIMESTAMP,Tokens\n", 1, "columns must be"),
        (AZURE + "yesterday,1,2\n", 3, "'yesterday' is no time"),
        (AZURE + "2023-11-16 18:17:04,1\n", 3, "3 columns are needed, not 2"),
        (AZURE + "2023-11-16 18:17:04,-1,2\n", 3, "ContextTokens must be a whole number, not '-1'"),
        (AZURE + "2023-11-16 18:17:02,1,2\n", 3, "before the request above"),
        (MOONCAKE + '{"timestamp": 1', 2, "Invalid JSON"),
        (
            MOONCAKE + '{"timestamp": 6000, "input_length": 5}\n',
            2,
            "output_length is missing",
        ),
        (MOONCAKE.replace("7", '"x"'), 1, "hash_ids.0 must be a valid integer, not 'x'"),
        (OWN + "[]\n", 2, "must be an object"),
        (OWN.replace("output_tokens", "outputs"), 1, "no member is called 'outputs'"),
        (OWN.replace("100", "true"), 1, "input_tokens must be a valid integer, not True"),
        (OWN.replace("}", ', "tier": "gold"}'), 1, "tier must be 'realtime'"),
        (OWN.replace("}", ', "prefix": [1, 2]}'), 1, "2 blocks of 512 tokens are more than its 100"),
        (OWN.replace("100", "99999999999"), 1, "input_tokens must be less than or equal to 10000000"),
        ('{"block_tokens": 0}\n', 1, "block_tokens must be greater than or equal to 1, not 0"),
    ],
)
def test_bad_traces_are_told_with_their_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(BadTrace, match=words) as caught:
        list(trace(tmp_path, text).jobs())
    assert caught.value.line == line
    assert (f"line {line}: " in str(caught.value)) == bool(line)


def test_what_can_be_read_only_once_is_refused_at_once(tmp_path: Path) -> None:
    """What was read of a pipe at first is not there when it is read again."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(BadTrace, match="a file on disk"):
        TraceFile(path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="No such file"):
        TraceFile(tmp_path / "nothing")


@given(st.lists(st.one_of(st.just(OWN.encode()), st.binary(max_size=60)), max_size=5))
def test_any_bytes_are_jobs_or_one_documented_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(b"\n".join(lines))
    try:
        for job in TraceFile(path).jobs():
            assert job.input_tokens > 0
            assert job.at_s >= 0
    except BadTrace:
        pass


@pytest.mark.parametrize(
    ("name", "count", "last_s", "blocks"),
    [
        ("azure_llm_code_2023.csv", 8819, 3435.948056, 0),
        ("mooncake_synthetic.jsonl", 3993, 1022.025, 117_500),
    ],
)
def test_the_public_traces_are_read_whole(name: str, count: int, last_s: float, blocks: int) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not beside the project (../shared/data)")
    seen, held, job = 0, 0, None
    for job in TraceFile(DATA / name).jobs():
        seen, held = seen + 1, held + len(job.prefix)
    assert seen == count
    assert job is not None
    assert job.at_s == pytest.approx(last_s)
    assert held == pytest.approx(blocks, rel=0.01)
