"""``python -m tests.chaos.peer.execute PROGRAM ARGUMENT…`` becomes that program: same process, same log."""

import os
import sys


def main() -> None:
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
