"""Classes of tenants are written by their names, and what cannot be a label is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.runtime.config.metrics import MetricsTable


def test_classes_keep_their_order_for_the_first_that_fits_counts() -> None:
    table = MetricsTable(tenant_classes={"paying": ["corp-*"], "all-the-rest": ["*"]})
    assert list(table.tenant_classes) == ["paying", "all-the-rest"]
    assert MetricsTable().tenant_classes == {}


@pytest.mark.parametrize(
    "classes",
    [
        {"": ["a"]},
        {"Paying": ["a"]},
        {"a b": ["a"]},
        {"a": [""]},
        {"a": "b"},
        {f"c{n}": [] for n in range(21)},
    ],
)
def test_what_cannot_be_a_class_is_refused(classes: Any) -> None:
    with pytest.raises(ValidationError):
        MetricsTable(tenant_classes=classes)
