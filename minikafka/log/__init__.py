"""Floor 2: one partition on disk.

Knows segments, indexes, leader epochs, producer state, retention and recovery, in Kafka's file formats.
Does not know what a replica, a leader or a broker is: the high watermark comes in as a number.
Rules: writing is synchronous, only durability is awaited (``File.sync``); time comes in as ``now``; files are reached
through the ``Disk`` port alone.
"""
