"""From Kafka's messages to those of ``wire/messages.py`` and back, one module for each family of APIs.

Rules for this package: pure functions. Kafka nests partitions in topics and names topics by id in new versions; our
messages are flat and name them by name. What only Kafka's clients need to know (leaders' endpoints, codes by version)
is added here, so that handlers know nothing of versions.
"""
