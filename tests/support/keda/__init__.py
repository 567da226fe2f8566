"""KEDA's side of its external scaler: a client that gRPC's compiler makes from KEDA's interface."""

import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from tests.support.deploy_tools import grpc_compiler

NAME = "externalscaler"
_HERE = Path(__file__).parent


@cache
def compiled(directory: Path) -> tuple[ModuleType, ModuleType]:
    """The modules that gRPC's compiler writes into ``directory``: messages, and the client's stubs."""
    directory.mkdir(parents=True, exist_ok=True)
    outputs = [f"--{kind}_out={directory}" for kind in ("python", "grpc_python")]
    source = [f"--proto_path={_HERE}", str(_HERE / f"{NAME}.proto")]
    command = [sys.executable, "-m", "grpc_tools.protoc", *outputs, *source]
    environment = {"PYTHONPATH": grpc_compiler()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    sys.path.insert(0, str(directory))
    try:
        return importlib.import_module(f"{NAME}_pb2"), importlib.import_module(f"{NAME}_pb2_grpc")
    finally:
        sys.path.remove(str(directory))
