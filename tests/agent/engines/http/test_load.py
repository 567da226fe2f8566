"""Load is read from the metrics of every engine that has them."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from agent.engines.http.load import LABELS, SLICE_BYTES, EngineLoad, Loads, slices
from shared.protocol.batch_sizes import BatchSizes
from shared.protocol.limits import BATCH_SIZES

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="qwen"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="qwen"} 0.25
vllm:num_requests_running_total{model_name="qwen"} 999.0
vllm:request_success_total{finished_reason="stop",model_name="qwen"} 12.0
"""


def read_load(text: bytes) -> Loads:
    loads = Loads()
    for piece in slices(text):
        loads.feed(piece)
    return loads


def by_model(text: bytes) -> Mapping[str, EngineLoad] | None:
    return read_load(text).by_model or None


def test_vllm_is_read_by_model() -> None:
    assert by_model(VLLM) == {"qwen": EngineLoad(3, 2, 0.25)}


def test_replicas_inside_one_engine_add_up() -> None:
    second = VLLM.replace(b'engine="0"', b'engine="1"').replace(b"0.25", b"0.75")
    assert by_model(VLLM + second) == {"qwen": EngineLoad(6, 4, 0.75)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'vllm:gpu_cache_usage_perc{model_name="a"} 0.5\n', {"a": EngineLoad(kv_use=0.5)}),
        (
            b'sglang:num_running_reqs{model_name="a"} 4\nsglang:num_queue_reqs{model_name="a"} 1\n'
            b'sglang:token_usage{model_name="a"} 0.1\n',
            {"a": EngineLoad(4, 1, 0.1)},
        ),
        (b"tgi_batch_current_size 7\ntgi_queue_size 1\n", {"": EngineLoad(7, 1)}),
        (
            b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n",
            {"": EngineLoad(1, 2)},
        ),
        (b"trunkline_engine_requests_running 2\n", {"": EngineLoad(2)}),
        (b"vllm:num_requests_running 1e3\n", {"": EngineLoad(1000)}),
        (b"vllm:num_requests_running NaN\nvllm:num_requests_waiting x\n", None),
        (b"vllm:kv_cache_usage_perc 1.5\n", {"": EngineLoad(kv_use=1.0)}),
        (
            b'sglang:max_total_num_tokens{model_name="a",tp_rank="0"} 471258.0\n',
            {"a": EngineLoad(kv_tokens=471258)},
        ),
        (b"trunkline_engine_kv_tokens 0\n", {"": EngineLoad()}),
        (b"process_cpu_seconds_total 3\n", None),
        (b"<html>", None),
    ],
)
def test_each_engines_names_are_known(text: bytes, expected: dict[str, EngineLoad] | None) -> None:
    assert by_model(text) == expected


def test_a_model_without_a_line_of_its_own_has_the_engines_load() -> None:
    loads = Loads({"base": EngineLoad(3, 1, 0.5), "other": EngineLoad(1, 0, 0.7)})
    assert loads.of("base") == EngineLoad(3, 1, 0.5)
    assert loads.of("adapter") == EngineLoad(4, 1, 0.7)
    assert Loads({}).of("x") == EngineLoad()


CACHE_INFO = (
    b'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
    b'%bnum_cpu_blocks="None",num_gpu_blocks="%b"} 1.0\n'
)


@pytest.mark.parametrize(
    ("size", "blocks", "tokens"),
    [
        (b"", b"27898", 446_368),
        (b'kv_cache_size_tokens="463459",', b"320", 463_459),
        (b"", b"None", None),
        (b'kv_cache_size_tokens="None",', b"661", 10_576),
    ],
)
def test_the_room_for_context_of_vllm_stands_in_its_settings(
    size: bytes, blocks: bytes, tokens: int | None
) -> None:
    loads = read_load(VLLM + CACHE_INFO % (size, blocks))
    assert loads.of("qwen") == EngineLoad(3, 2, 0.25, tokens)
    assert loads.of("an-adapter").kv_tokens == tokens


@given(st.binary(max_size=300))
def test_no_text_is_too_strange(text: bytes) -> None:
    read_load(b"vllm:num_requests_running" + text)
    read_load(text)


def test_a_long_page_is_read_in_slices_that_cut_no_line() -> None:
    page = VLLM + b"x 1\n" * SLICE_BYTES + VLLM.replace(b"qwen", b"other")
    pieces = list(slices(page))
    assert b"".join(pieces) == page
    assert max(map(len, pieces)) <= SLICE_BYTES
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert by_model(page) == {"qwen": EngineLoad(3, 2, 0.25), "other": EngineLoad(3, 2, 0.25)}
    assert b"".join(slices(b"x" * 3 * SLICE_BYTES)) == b"x" * 3 * SLICE_BYTES


def test_the_models_whose_load_is_told_apart_are_bounded() -> None:
    loads = by_model(b"".join(b'tgi_queue_size{model_name="%d"} 1\n' % n for n in range(LABELS + 10)))
    assert loads is not None
    assert len(loads) == LABELS


def test_the_batches_of_this_projects_engines_are_counted_once_each() -> None:
    registry = CollectorRegistry()
    histogram = Histogram(
        "trunkline_engine_batch_size", "x", ("model_name",), buckets=BATCH_SIZES, registry=registry
    )
    for size in (1, 1, 2, 3, 4, 600):
        histogram.labels("a").observe(size)
    histogram.labels("b").observe(512)
    loads = read_load(generate_latest(registry))
    assert loads.of("a").batches == BatchSizes((2, 1, 2, *(0,) * 7, 1), 611)
    assert loads.of("b").batches == BatchSizes((*(0,) * 9, 1, 0), 512)
    both = loads.of("neither").batches
    assert both is not None
    assert (sum(both.counts), both.items) == (7, 1123)


def test_a_histogram_with_other_bounds_and_an_engine_without_one_say_nothing_of_batches() -> None:
    loads = Loads()
    loads.feed(b'trunkline_engine_batch_size_bucket{le="3.0"} 1\nvllm:num_requests_running 1\n')
    assert loads.of("m").batches is None
