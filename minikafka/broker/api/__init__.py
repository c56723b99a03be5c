"""One file per API, or per few that belong together: typed request in, typed response out.

Knows what its API promises and where it differs from Kafka; each file's header says so.
Does not know HTTP or msgpack: another listener is another codec over the same handlers.
"""
