"""Floor 6: ``/v1`` for people with curl, health, and JSON on ``/rpc``.

Knows HTTP, JSON and RFC 9457; asks the broker only through typed requests (``Host.answer``) and other brokers only
through the Network port. Does not know logs, replication or the quorum: an image of the metadata is all it looks at.
Rules:

1. The status tells the truth: a failure is never a 200, bad input is never a 500, a traceback never leaves the broker.
2. What is not understood is refused with the nearest name, never ignored: the caller would believe it had an effect.
3. Every body, list and wait has a limit, and ``GET /v1/cluster`` says which.
4. Any broker answers a person: it forwards to the leader, once it knows which that is, and says who served.

Reading order: host, model, route, routes; then topics, produce, fetch.
"""
