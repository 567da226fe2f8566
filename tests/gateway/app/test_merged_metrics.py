"""``/metrics`` of all workers."""

from pathlib import Path

from gateway.app.merged_metrics import MergedMetrics
from gateway.observability.metrics import Metrics
from gateway.runtime.workers.siblings import Siblings


async def test_whoever_is_asked_tells_what_all_count(tmp_path: Path) -> None:
    names = ["h-0", "h-1", "h-2"]
    siblings = [Siblings(tmp_path, name, names) for name in names[:2]]
    counted = [Metrics(), Metrics()]
    merged = [MergedMetrics(*each) for each in zip(counted, siblings, strict=True)]
    for each in siblings:
        await each.start()
    counted[0].request_finished("chat", "m", 200, 0.1)
    counted[1].request_finished("chat", "m", 200, 0.1)
    pages = [(await each.render()).decode() for each in merged]
    for each in siblings:
        each.close()
    for page in pages:
        for name in names[:2]:
            labels = f'process="{name}",model="other",route="chat",status="2xx",tier="none"'
            assert f"trunkline_requests_total{{{labels}}} 1.0" in page
            assert f'trunkline_gateway_process_up{{process="{name}"}} 1.0' in page
        assert 'trunkline_gateway_process_up{process="h-2"} 0.0' in page
