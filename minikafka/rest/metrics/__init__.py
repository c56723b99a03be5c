"""``GET /metrics``: what a broker counts and where it stands, in Prometheus' text format.

Two families under names that people's dashboards and alerts know already: ``kafka_...`` as Kafka's MBeans are called
behind Strimzi's JMX exporter rules (``mbeans.py``), and kafka_exporter's (``door.py``); what is ours alone begins with
``mk_``.

Rules for this package: counters are read from those who count (``broker/meters.py``, ``families.py``), all else from
the broker's state at the moment of the scrape; nothing is kept up to date for a scrape that may never come. Labels are
our own words, node ids, and topics and partitions that exist, of at most ``mk.metrics.partitions.max`` partitions.
"""
