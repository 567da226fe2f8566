"""The connection to the gateway: joining, dialling, the session, and what it publishes."""
