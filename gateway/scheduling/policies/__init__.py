"""The policies that choose a deployment. Pure."""
