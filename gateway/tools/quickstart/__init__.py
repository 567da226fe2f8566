"""``trunkline quickstart``: a gateway, an agent with the demo model and an answer, in one command.

Gateway and agent run as the processes they are everywhere else (``python -m gateway``, ``python -m agent``),
so what works here works when they are on two machines. `command` tells the story, `processes` runs them,
`client` asks the questions, `checks` judges the answers, `page` is what a person reads.
"""

from gateway.tools.quickstart.command import register

__all__ = ["register"]
