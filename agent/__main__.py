"""``python -m agent`` does what ``trunkline agent`` does."""

from agent.cli import main

if __name__ == "__main__":
    main()
