"""``trunkline quickstart``: a gateway, an agent with the demo model and an answer, in one command.

Gateway and agent run as the processes they are everywhere else (``python -m gateway``, ``python -m agent``),
so what works here works when they are on two machines. `command` starts them in order and writes what a
person reads, `processes` runs them, `client` asks the questions and judges the answers.
"""

from gateway.tools.quickstart.command import register

__all__ = ["register"]
