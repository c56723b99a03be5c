"""Floor 6: the real world behind the four ports.

Knows aiohttp, files of the operating system, the system's clocks, and how to run several brokers on one machine.
Does not know the rules: nothing here decides what is committed or who leads.
Rules: every adapter passes the same contract suite as its simulated twin (tests/contracts).
"""
