"""Settings of real clusters that have little time: a dead broker is noticed soon. Only virtual clocks assert times.

A session outlasts a stall of three seconds of the whole machine: brokers that are fenced for that are no part of a test.
"""

SHORT_SESSIONS = {
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "300",
}

SHORT_LAGS = {
    **SHORT_SESSIONS,
    "replica.lag.time.max.ms": "800",
}
"""And who does not follow leaves the ISR."""
