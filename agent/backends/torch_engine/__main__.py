"""``python -m agent.backends.torch_engine``: one engine process."""

import sys

from agent.backends.torch_engine.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
