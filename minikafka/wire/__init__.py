"""Floor 1: bytes and messages.

Knows the layout of Kafka's RecordBatch v2, the request and response pair of each API, and how both become bytes.
Does not know where the bytes travel, what a log is, or who leads: nothing here opens a connection or a file.
Rules: a message is a frozen dataclass with Kafka's names; a batch is stamped and verified, never opened, on the
broker's path; malformed input raises a typed error.
"""
