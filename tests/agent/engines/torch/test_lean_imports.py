"""transformers is imported without what the engine does not use, and knows the same models."""

from pathlib import Path
from typing import Any

import pytest
from transformers import utils
from transformers.utils import import_utils

from agent.engines.torch.lean_imports import import_transformers, once_for_models


def test_what_several_processes_compute_together_is_left_out() -> None:
    import_transformers()
    changed: tuple[Any, ...] = (utils, import_utils)
    assert not any(module.is_torch_distributed_available() for module in changed)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A package of two models."""
    directory = tmp_path / "models"
    for name, model in (("llama", "Llama"), ("bert", "Bert")):
        (directory / name).mkdir(parents=True)
        for kind, what in (("configuration", "Config"), ("modeling", "Model")):
            (directory / name / f"{kind}_{name}.py").write_text(f'__all__ = ["{model}{what}"]\n')
            (directory / name / "__init__.py").write_text("")
    (directory / "__init__.py").write_text("")
    return directory


def test_names_of_models_are_looked_up_once(models: Path) -> None:
    asked: list[str] = []

    def define(module_path: Any, prefix: str | None = None) -> Any:
        asked.append(str(module_path))
        return original(module_path, prefix)

    original: Any = import_utils.define_import_structure.__wrapped__
    by_once = once_for_models(define, models)
    first = by_once(models, prefix="models")
    first[frozenset()]["other"] = {"Other"}  # transformers adds names that are not of models
    found = by_once(str(models / "__init__.py"))
    assert found == original(str(models / "__init__.py"))
    assert asked == [str(models)] * 2, "the function itself keeps what it found"
    assert by_once(models / "llama" / "__init__.py") == original(models / "llama" / "__init__.py")
