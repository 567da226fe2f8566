"""The gateway's part of the command line: which command is in which module."""

from shared.process.cli import RootGroup

COMMANDS: dict[str, dict[str, str]] = {
    "gateway.cli.gateway": {"gateway": "Run a gateway."},
    "gateway.cli.resources": {
        "token": "Join tokens: what lets a GPU host become an agent.",
        "key": "API keys for clients.",
        "tenant": "What tenants may have: limits, budgets, shares.",
        "price": "What models cost, for budgets and usage.",
        "agents": "The agents that joined.",
        "identity": "The gateway's own key, which agents trust.",
        "alias": "Names that stand for models: canaries, shadows, fallbacks.",
        "webhook": "Webhooks: their secrets, and how their deliveries went.",
    },
    "gateway.cli.config": {"config": "The settings of the programs on this host, and where they come from."},
    "gateway.cli.usage": {"usage": "Requests, tokens, GPU-seconds and money used."},
    "gateway.cli.live": {
        "status": "Who is connected, what runs and what waits.",
        "models": "Which models are served where, and how full they are.",
        "drain": "Give an agent no new work, and wait until it is idle.",
        "load": "Have agents load a model.",
        "evict": "Have agents unload a model.",
    },
    "gateway.cli.scaling": {"scaling": "How many replicas of each model are wanted."},
    "gateway.cli.logs": {"logs": "The log of a running gateway: the last lines and those that come."},
    "gateway.cli.why": {"why": "Why a request waited, and why it went where it went."},
    "gateway.cli.jobs": {"job": "Jobs: requests that are answered later."},
    "gateway.cli.batch": {"batch": "Files of requests, answered by and by."},
    "gateway.cli.store": {"store": "The store on a PostgreSQL server: migrate, check, import."},
    "gateway.cli.audit": {"audit": "The audit log: who did what, and is it whole."},
    "gateway.tools.top": {"top": "The fleet, the queues and requests, live in this terminal."},
    "gateway.tools.quickstart": {"quickstart": "A gateway, an agent and a small model on this machine."},
    "gateway.tools.doctor": {"doctor": "What is wrong here or on the way, and what to do about it."},
    "gateway.tools.bench": {"bench": "Load an OpenAI endpoint; report times and throughput."},
    "gateway.tools.simulate": {"simulate": "Run scheduling policies on simulated GPUs."},
    "gateway.tools.simulate.week_command": {
        "simulate-week": "A week of requests with replicas that come and go, scaled in different ways."
    },
    "gateway.tools.whatif": {"whatif": "The last hour replayed with another fleet or another policy."},
}
"""Module → its commands, each with a line for the list of commands. Each is imported when it is used."""


def commands(root: RootGroup) -> None:
    """Add every command of this package (entry point ``trunkline.commands``)."""
    for module, summaries in COMMANDS.items():
        root.later(module, summaries)
    root.checks("gateway", "gateway.tools.doctor.gateway_host")
