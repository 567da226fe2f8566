"""``python -m gateway`` is ``trunkline gateway``."""

from gateway.cli_gateway import app

if __name__ == "__main__":
    app(prog_name="python -m gateway")
