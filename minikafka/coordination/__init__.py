"""Floor 4, below ``groups/``: what every coordinator whose memory is a partition of an internal topic has in common.

``rule.py`` says what a driver needs of such a coordinator, ``step.py`` is how the coordinator tells the driver what it
wants done, ``keys.py`` which partition a name belongs to, and ``packing.py`` writes and reads Kafka's primitive types.
"""
