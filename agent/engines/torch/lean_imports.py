"""transformers without the imports that the engine does not use: they take a fifth of an engine's start.

- PyTorch's compiler (:mod:`.compiler`).
- PyTorch's computing with tensors that several processes share. transformers does without it where PyTorch
  was built without.
- The names of all models, which are looked up in two thousand files, once for ``transformers`` and once more
  for ``transformers.models``.

The functions that are replaced are those of the version of transformers that ``pyproject.toml`` names.
"""

import functools
from pathlib import Path
from typing import Any

from agent.engines.torch.compiler import leave_out_compiler


def import_transformers() -> None:
    """Import transformers and replace what would import the rest. What is imported already stays so."""
    leave_out_compiler()
    import transformers
    from transformers import utils
    from transformers.utils import import_utils

    module_file = transformers.__file__
    assert module_file is not None
    changed: tuple[Any, ...] = (utils, import_utils)
    for module in changed:
        module.is_torch_distributed_available = _unavailable
    import_utils.define_import_structure = once_for_models(
        import_utils.define_import_structure, Path(module_file).parent / "models"
    )


def _unavailable() -> bool:
    return False


def once_for_models(define: Any, models: Path) -> Any:
    """``define_import_structure``, which keeps what it found. It is asked for ``models`` with a prefix first,
    and without one the answer has the same names."""

    @functools.wraps(define)
    def call(module_path: str | Path, prefix: str | None = None) -> Any:
        if prefix is not None or Path(module_path) != models / "__init__.py":
            return define(module_path, prefix)
        start = f"{models.name}."
        return {
            backends: {name.removeprefix(start): of for name, of in modules.items() if name.startswith(start)}
            for backends, modules in define(models, prefix=models.name).items()
        }

    return call
