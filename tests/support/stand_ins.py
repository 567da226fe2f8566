"""``python -m tests.support.stand_ins MODULE ARGUMENTS``: runs a stand-in for somebody else's server.

All of them import the same, so that one fork server can fork each of them.
"""

import runpy
import sys

STAND_INS = frozenset(
    f"tests.support.{name}" for name in ("chat_engine", "comfyui_server", "kserve_server", "model_servers")
)
"""Those that are run so where processes are forked."""

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
