"""The connected agents: their endpoint, sessions, deployments and the health of each."""
