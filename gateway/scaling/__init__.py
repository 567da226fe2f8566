"""Says how many replicas of each model are wanted: in the admin API, in metrics, to KEDA and to hooks."""
