"""What the agent can take: its deployments, their slots, memory and devices."""
