"""How many replicas of a model are wanted, on which class of device. Pure: ``now`` is an argument."""
