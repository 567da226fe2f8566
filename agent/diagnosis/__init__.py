"""What ``trunkline doctor`` looks at on an agent's host: settings, identity, GPUs, engines.

It imports nothing of the gateway; :mod:`agent.cli` registers it. Nothing is changed, joined or started.
"""
