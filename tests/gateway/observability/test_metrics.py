"""What is counted, and that labels are bounded."""

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from gateway.domain.slices import SLICE, Stepwise
from gateway.fleet.session import AgentSession
from gateway.observability.fleet_figures import AgentFigures, FleetFigures, SessionTotals
from gateway.observability.gauges import (
    BudgetFigures,
    PredictionFigures,
    SpentFigures,
    TunnelFigures,
)
from gateway.observability.metrics import AGENT_LABELS, MODEL_LABELS, TENANT_LABELS, Metrics
from shared.protocol import limits
from shared.protocol.batch_sizes import BatchSizes
from shared.protocol.limits import BATCH_SIZES
from shared.protocol.messages import GpuState, Usage
from tests.gateway.fleet.fleet import Fleet, deployment
from tests.support.promtool import promtool
from tests.support.turns import turns_during

T = TypeVar("T")


@dataclass
class CertificateDates:
    name: str
    not_before_s: int
    not_after_s: int


def found(value: T) -> Stepwise[T]:
    """What looks at nothing and has found that."""
    yield
    return value


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics()
    metrics.know_model("m")
    return metrics


def test_requests_are_counted_by_status_class(metrics: Metrics) -> None:
    metrics.request_finished("chat", "m", 200, 0.5, "batch")
    metrics.request_finished("chat", "m", 429, 0.01, "batch")
    assert (
        value(metrics, "trunkline_requests_total", route="chat", model="m", tier="batch", status="2xx") == 1
    )
    assert (
        value(metrics, "trunkline_requests_total", route="chat", model="m", tier="batch", status="4xx") == 1
    )
    assert value(metrics, "trunkline_request_seconds_count", route="chat", model="m", tier="batch") == 2


async def test_models_nobody_serves_make_no_label(metrics: Metrics) -> None:
    for number in range(50):
        metrics.request_finished("chat", f"made-up-{number}", 404, 0.0)
        metrics.refused(f"made-up-{number}", "model_not_found")
    metrics.request_finished("/made/up", "m", 404, 0.0)
    assert (
        value(metrics, "trunkline_requests_total", route="chat", model="other", tier="none", status="4xx")
        == 50
    )
    assert (
        value(metrics, "trunkline_requests_total", route="other", model="m", tier="none", status="4xx") == 1
    )
    assert b"made" not in await metrics.render()


def test_a_model_that_is_known_later_counts_under_its_own_label_from_then_on(metrics: Metrics) -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=20)
    for _ in range(2):
        metrics.request_finished("chat", "late", 200, 0.5, "batch")
        metrics.used("late", usage)
        metrics.know_model("late")
    for model in ("other", "late"):
        labels = {"route": "chat", "model": model, "tier": "batch"}
        assert value(metrics, "trunkline_requests_total", status="2xx", **labels) == 1
        assert value(metrics, "trunkline_request_seconds_count", **labels) == 1
        assert value(metrics, "trunkline_tokens_total", model=model, kind="completion") == 20


def test_only_so_many_models_have_labels_of_their_own() -> None:
    metrics = Metrics()
    for number in range(MODEL_LABELS + 50):
        metrics.know_model(f"model-{number}")
        metrics.first_byte(f"model-{number}", 0.1)
    assert value(metrics, "trunkline_time_to_first_byte_seconds_count", model="other") == 50


def test_only_so_many_agents_have_labels_of_their_own_and_the_others_are_added_up(metrics: Metrics) -> None:
    agents = [AgentFigures(f"gpu-{number:04}", 2, 1, number / 1000) for number in range(AGENT_LABELS + 3)]
    metrics.gauges.fleet = lambda: found(FleetFigures(each_agent=agents))
    assert value(metrics, "trunkline_agent_slots_granted", agent="gpu-0000") == 2
    assert value(metrics, "trunkline_agent_slots_granted", agent="other") == 6
    assert value(metrics, "trunkline_agent_requests_in_flight", agent="other") == 3
    assert value(metrics, "trunkline_agent_round_trip_seconds", agent="other") == (AGENT_LABELS + 2) / 1000
    metrics.request_finished("chat", "m", 200, 0.1, agent="gpu-0000")
    metrics.request_finished("chat", "m", 503, 0.1, agent="gpu-9999")
    assert value(metrics, "trunkline_agent_requests_total", agent="gpu-0000", status="2xx") == 1
    assert value(metrics, "trunkline_agent_requests_total", agent="other", status="5xx") == 1


def test_a_stream_has_the_time_to_its_first_token_and_the_mean_between_tokens(metrics: Metrics) -> None:
    metrics.streamed("m", 0.25, 2.0, 5, "standard")
    metrics.streamed("m", 0.75, 2.0, 1, "standard")
    metrics.streamed("m", 1.0, 2.0, None, "standard")
    assert value(metrics, "trunkline_time_to_first_token_seconds_sum", model="m", tier="standard") == 2.0
    assert value(metrics, "trunkline_time_per_output_token_seconds_count", model="m") == 1
    assert value(metrics, "trunkline_time_per_output_token_seconds_sum", model="m") == 0.5


def test_gpus_of_agents_with_labels_are_shown_and_those_of_others_are_not(metrics: Metrics) -> None:
    told, silent = GpuState(0, "H200", 100, 40, 0.75, 61.0, 412.5), GpuState(1, "H200", 100, 0)
    names = [f"gpu-{number:04}" for number in range(AGENT_LABELS + 1)]
    fleet = FleetFigures(gpus=[(names[0], told), (names[0], silent), *((name, told) for name in names[1:])])
    metrics.gauges.fleet = lambda: found(fleet)
    read = {
        "utilisation_ratio": 0.75,
        "memory_used_bytes": 40,
        "memory_bytes": 100,
        "temperature_celsius": 61.0,
    }
    for name, expected in (read | {"power_watts": 412.5}).items():
        assert value(metrics, f"trunkline_gpu_{name}", agent=names[0], gpu="0") == expected
    assert value(metrics, "trunkline_gpu_power_watts", agent=names[0], gpu="1") is None
    assert value(metrics, "trunkline_gpu_memory_used_bytes", agent=names[0], gpu="1") == 0
    assert value(metrics, "trunkline_gpu_power_watts", agent="other", gpu="0") is None


def test_how_unevenly_slots_are_used_is_shown_where_a_model_has_several_deployments(metrics: Metrics) -> None:
    metrics.know_model("alone")
    fleet = FleetFigures(utilisations={"m": [1.0, 0.0], "alone": [0.5], "nobody's": [1.0, 0.0]})
    metrics.gauges.fleet = lambda: found(fleet)
    assert value(metrics, "trunkline_slot_utilisation_variation_ratio", model="m") == 1.0
    assert value(metrics, "trunkline_slot_utilisation_variation_ratio", model="alone") is None
    assert value(metrics, "trunkline_slot_utilisation_variation_ratio", model="other") is None


def test_what_sessions_keep_and_sent_again_is_shown(metrics: Metrics) -> None:
    totals = SessionTotals(7, 2, 3 * limits.RETAINED_BYTES // 2, limits.RETAINED_BYTES)
    metrics.gauges.fleet = lambda: found(FleetFigures(totals=totals))
    assert value(metrics, "trunkline_messages_replayed_total") == 7
    metrics.gauges.answer_stalls = lambda: 5
    assert value(metrics, "trunkline_credit_stalls_total", body="request") == 2
    assert value(metrics, "trunkline_credit_stalls_total", body="answer") == 5
    assert value(metrics, "trunkline_replay_bytes") == 1.5 * limits.RETAINED_BYTES
    assert value(metrics, "trunkline_replay_fullest_ratio") == 1.0


def test_spending_is_shown_by_model_and_budgets_by_tenant(metrics: Metrics) -> None:
    metrics.gauges.spent = lambda: {"m": SpentFigures(12.5, 0.25), "unknown": SpentFigures(1.0, 0.0)}
    tenants = [f"t{number}" for number in range(TENANT_LABELS + 2)]
    metrics.gauges.budgets = lambda: [BudgetFigures(name, "day", n / 100) for n, name in enumerate(tenants)]
    assert value(metrics, "trunkline_gpu_seconds_total", model="m") == 12.5
    assert value(metrics, "trunkline_gpu_seconds_total", model="other") == 1.0
    assert value(metrics, "trunkline_cost_total", model="m") == 0.25
    assert value(metrics, "trunkline_budget_used_ratio", tenant="t50", period="day") == 0.5
    assert (
        value(metrics, "trunkline_budget_used_ratio", tenant="other", period="day")
        == (TENANT_LABELS + 1) / 100
    )


def test_the_certificates_end_is_shown_where_tls_is_ended_here(metrics: Metrics) -> None:
    assert value(metrics, "trunkline_tls_certificate_end_timestamp_seconds") is None
    metrics.gauges.certificate_ends_s = lambda: 1.8e9
    assert value(metrics, "trunkline_tls_certificate_end_timestamp_seconds") == 1.8e9


def test_the_dates_of_agents_certificates_are_shown_and_of_many_the_first_that_ends(metrics: Metrics) -> None:
    dates = [CertificateDates(f"gpu-{n:04}", n, 100_000 - n) for n in range(AGENT_LABELS + 2)]
    metrics.gauges.agent_certificates = lambda: dates
    for agent, begins, ends in (("gpu-0007", 7, 99_993), ("other", AGENT_LABELS + 1, 99_499)):
        assert value(metrics, "trunkline_agent_certificate_start_timestamp_seconds", agent=agent) == begins
        assert value(metrics, "trunkline_agent_certificate_end_timestamp_seconds", agent=agent) == ends


def test_what_an_engine_computed_at_once_counts_from_its_second_report_on(metrics: Metrics) -> None:
    fleet, none = Fleet(), (0,) * (len(BATCH_SIZES) - 2)

    def reported(*reports: BatchSizes | None) -> tuple[float | None, float | None, float | None]:
        agent = fleet.connect("a")
        for each in reports:
            agent.serve(deployment("m", batches=each))
            fleet.settle()
        fleet.metrics.know_model("m")
        name, found = "trunkline_engine_batch_size", fleet.metrics
        return (
            value(found, f"{name}_bucket", model="m", le="2.0"),
            value(found, f"{name}_bucket", model="m", le="+Inf"),
            value(found, f"{name}_sum", model="m"),
        )

    assert reported(None, BatchSizes((5, 0, 0, *none), 5)) == (None, None, None)
    more = BatchSizes((6, 2, 1, *none), 14)
    assert reported(BatchSizes((5, 0, 0, *none), 5), more, more) == (3.0, 4.0, 9.0)
    assert reported(more, BatchSizes((1, 0, 0, *none), 1)) == (4.0, 5.0, 10.0), "the engine began anew"


async def test_prometheus_itself_finds_nothing_wrong_with_any_name(metrics: Metrics) -> None:
    gpu = GpuState(0, "H200", 100, 40, 0.75, 61.0, 412.5)
    fleet = FleetFigures(gpus=[("a", gpu)], kv_use={"m": 0.5}, utilisations={"m": [1.0, 0.0]})
    metrics.gauges.fleet = lambda: found(fleet)
    metrics.gauges.spent = lambda: {"m": SpentFigures(12.5, 0.25)}
    metrics.gauges.budgets = lambda: [BudgetFigures("t", "day", 0.5)]
    metrics.gauges.certificate_ends_s = lambda: 1.8e9
    metrics.gauges.agent_certificates = lambda: [CertificateDates("a", 1, 2)]
    metrics.computed("m", BatchSizes((1,) * (len(BATCH_SIZES) + 1), 2000))
    metrics.tenant_class = lambda tenant: "paying"
    metrics.request_finished("chat", "m", 200, 0.1, "standard", "t")
    assert promtool("check", "metrics", stdin=await metrics.render()) == ""


async def test_the_program_and_its_process_are_described_and_no_series_tells_when_it_began(
    metrics: Metrics,
) -> None:
    metrics.request_finished("chat", "m", 200, 0.1)
    metrics.streamed("m", 0.25, 2.0, 5, "standard")
    text = (await metrics.render()).decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    samples = {
        sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples
    }
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= names
    assert samples["trunkline_build_info"].value == 1
    assert set(samples["trunkline_build_info"].labels) == {"version", "python"}
    assert not [name for name in samples if name.endswith("_created")]


def test_a_fleet_whose_last_agent_has_gone_has_none_and_not_no_figure(metrics: Metrics) -> None:
    """An alert compares it with what it was before: nothing would be less than that."""
    assert value(metrics, "trunkline_agents_connected", state="ready") == 0


def test_states_have_one_label_and_are_in_lower_case(metrics: Metrics) -> None:
    fleet = FleetFigures()
    fleet.agents["ready"] += 1
    fleet.deployments["m", "loaded"] += 1
    metrics.gauges.fleet = lambda: found(fleet)
    metrics.gauges.health = lambda: found({("m", "half_open"): 1})
    assert value(metrics, "trunkline_agents_connected", state="ready") == 1
    assert value(metrics, "trunkline_deployments", model="m", state="loaded") == 1
    assert value(metrics, "trunkline_circuits", model="m", state="half_open") == 1


def test_tokens_are_counted_by_kind(metrics: Metrics) -> None:
    metrics.used("m", Usage(prompt_tokens=10, completion_tokens=20, cached_tokens=4))
    metrics.used("m", Usage(prompt_tokens=1, completion_tokens=2))
    for kind, tokens in {"prompt": 11, "completion": 22, "cached": 4}.items():
        assert value(metrics, "trunkline_tokens_total", model="m", kind=kind) == tokens


def test_predictions_that_share_labels_show_the_worst(metrics: Metrics) -> None:
    seen = [
        PredictionFigures("m", "h100", "total", 0.05, {"0.5": 1.1, "0.9": 1.5}),
        PredictionFigures("m", "other", "total", 0.1, {"0.5": 1.3}),
        PredictionFigures("m", "other", "total", -0.3, {"0.5": 1.2}),
    ]
    metrics.gauges.predictions = lambda: seen
    of = {"model": "m", "of": "total"}
    assert value(metrics, "trunkline_prediction_error", device="h100", share="0.9", **of) == 1.5
    assert value(metrics, "trunkline_prediction_error", device="other", share="0.5", **of) == 1.3
    assert value(metrics, "trunkline_prediction_bias", device="other", **of) == -0.3


def test_gauges_are_read_when_somebody_looks(metrics: Metrics) -> None:
    fleet = FleetFigures()
    metrics.gauges.fleet = lambda: found(fleet)
    metrics.gauges.queue_depths = lambda: {"m": 3, "gone": 1, "also gone": 1}
    metrics.gauges.tunnels = lambda: found(TunnelFigures(bytes_received=7, messages_sent=2))
    fleet.slots["m"] = 5
    assert value(metrics, "trunkline_slots_granted", model="m") == 5
    assert value(metrics, "trunkline_queue_requests", model="m") == 3
    assert value(metrics, "trunkline_queue_requests", model="other") == 2
    assert value(metrics, "trunkline_tunnel_bytes_total", direction="received") == 7
    assert value(metrics, "trunkline_tunnel_messages_total", direction="sent") == 2


def test_what_is_done_about_trouble_is_counted(metrics: Metrics) -> None:
    metrics.gauges.health = lambda: found({("m", "closed"): 3, ("m", "open"): 1, ("gone", "open"): 2})
    metrics.circuit_opened("m", "unreachable")
    metrics.ejected("m")
    metrics.retry_refused("m")
    metrics.failed_over("m", "lost")
    metrics.continued("m", "done")
    metrics.hedges("m", "started")
    metrics.hedges("m", "started")
    metrics.hedges("m", "won")
    assert value(metrics, "trunkline_circuits", model="m", state="closed") == 3
    assert value(metrics, "trunkline_circuits", model="other", state="open") == 2
    assert value(metrics, "trunkline_circuits_opened_total", model="m", reason="unreachable") == 1
    assert value(metrics, "trunkline_deployments_ejected_total", model="m") == 1
    assert value(metrics, "trunkline_retry_budget_exhausted_total", model="m") == 1
    assert value(metrics, "trunkline_failovers_total", model="m", reason="lost") == 1
    assert value(metrics, "trunkline_continuations_total", model="m", outcome="done") == 1
    assert value(metrics, "trunkline_hedges_total", model="m", outcome="started") == 2
    assert value(metrics, "trunkline_hedges_total", model="m", outcome="won") == 1


def test_two_gateways_in_one_process_count_apart() -> None:
    one, two = Metrics(), Metrics()
    one.tunnel("accepted")
    assert value(one, "trunkline_tunnels_total", outcome="accepted") == 1
    assert value(two, "trunkline_tunnels_total", outcome="accepted") is None


async def test_the_exposition_is_well_formed_and_names_have_units(metrics: Metrics) -> None:
    metrics.queued("m", "standard", 0.2)
    metrics.retried("m", "refused")
    metrics.broken("m", "session_lost")
    families = list(text_string_to_metric_families((await metrics.render()).decode()))
    names = {family.name for family in families}
    assert all(name.startswith(("trunkline_", "process_")) for name in names)
    assert {"trunkline_queue_seconds", "trunkline_tunnel_bytes", "trunkline_retries"} <= names
    assert metrics.CONTENT_TYPE.startswith("text/plain")


async def test_the_event_loop_turns_for_others_while_metrics_are_read(metrics: Metrics) -> None:
    for number in range(MODEL_LABELS):
        metrics.know_model(f"model-{number}")
        metrics.request_finished("chat", f"model-{number}", 200, 0.1)
    rendering = asyncio.ensure_future(metrics.render())
    assert await turns_during(rendering) >= 20
    text = rendering.result()
    assert value(metrics, "trunkline_request_seconds_count", route="chat", model="model-7", tier="none") == 1
    assert b'trunkline_request_seconds_count{model="model-7",route="chat",tier="none"} 1.0' in text


async def test_a_scrape_looks_at_so_many_agents_a_turn_and_makes_its_text_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agents, turn, looked, makers = 4 * SLICE, 0, Counter[int](), set[int]()
    fleet = Fleet()
    for number in range(agents):
        fleet.connect(f"a{number}", deployment("m", 2))
    shown_status = AgentSession.shown_status.fget  # type: ignore[attr-defined]
    add_metric = GaugeMetricFamily.add_metric

    def looked_at(session: AgentSession) -> str:
        looked[turn] += 1
        status: str = shown_status(session)
        return status

    def made(family: GaugeMetricFamily, *arguments: Any) -> None:
        if family.name.startswith("trunkline_"):
            makers.add(threading.get_ident())
        add_metric(family, *arguments)

    monkeypatch.setattr(AgentSession, "shown_status", property(looked_at))
    monkeypatch.setattr(GaugeMetricFamily, "add_metric", made)
    rendering = asyncio.ensure_future(fleet.metrics.render())
    while not rendering.done():
        await asyncio.sleep(0)
        turn += 1
    text = (await rendering).decode()
    assert sum(looked.values()) == agents
    assert max(looked.values()) <= SLICE
    assert makers
    assert threading.get_ident() not in makers
    assert f'trunkline_agents_connected{{state="ready"}} {agents}.0' in text
    assert f'trunkline_slots_granted{{model="m"}} {2 * agents}.0' in text
