"""Jobs over HTTP: ``/v1/jobs``, and any request that its client prefers to be answered later."""
