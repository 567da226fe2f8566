"""The policies that choose a deployment (SCHEDULING §4). Pure."""
