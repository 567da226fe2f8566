"""What can be set of scaling fits together, or is refused."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.runtime.config.scaling import ScalingTable


def test_patterns_keep_their_order_for_the_first_that_fits_counts() -> None:
    table = ScalingTable.model_validate(
        {"models": {"llama-*": {"min_replicas": 0}, "*": {"max_replicas": 3}}}
    )
    assert list(table.models) == ["llama-*", "*"]
    assert table.models["llama-*"].min_replicas == 0
    assert ScalingTable().classes == {}


@pytest.mark.parametrize(
    "given",
    [
        {"min_replicas": 5, "max_replicas": 4},
        {"utilisation": 0.0},
        {"webhook": "ftp://scaler.example/"},
        {"webhook": "https://user:word@scaler.example/"},
        {"keda_listen": "8710"},
        {"keda_listen": "127.0.0.1:99999"},
        {"keda_cert": Path("cert.pem")},
        {"keda_client_ca": Path("ca.pem")},
        {"classes": {"l4": {"price_hour": -1.0}}},
        {"models": {"m": {"minimum": 1}}},
        {"forecast": "perhaps"},
        {"forecast_quantile": 1.0},
        {"forecast_backtest_days": 3},
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ScalingTable.model_validate(given)
