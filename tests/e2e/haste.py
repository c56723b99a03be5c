"""Settings of real clusters that have little time: a dead broker is noticed soon. Only virtual clocks assert times."""

SHORT_SESSIONS = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.fetch.timeout.ms": "800",
    "controller.quorum.election.timeout.ms": "400",
}

SHORT_LAGS = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "150",
    "replica.lag.time.max.ms": "800",
}
"""And who does not follow leaves the ISR."""
