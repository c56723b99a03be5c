"""Floor 3: who may acknowledge what.

Knows the leader's and the follower's rules: log end offsets, the in-sync set, the high watermark, truncation by epoch.
Does not know the network, the controller's reasons, or that other partitions exist.
Rules: nothing here awaits, sleeps or reads a clock; every change of high watermark, ISR or epoch of a partition happens
in this package and nowhere else.
"""
