"""Floor 4, below ``groups/``: what every coordinator whose memory is a partition of an internal topic has in common.

``rule.py`` has what a driver needs of such a coordinator, the steps by which the coordinator says what it wants done,
and which partition a name belongs to; ``packing.py`` writes and reads Kafka's primitive types.
"""
