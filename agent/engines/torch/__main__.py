"""``python -m agent.engines.torch``: one engine process."""

import sys

from agent.engines.torch.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
