"""Floor 5: the broker's drivers.

Knows the four ports and turns requests into calls of the rules, and effects of the rules into writes, syncs and calls.
Does not know aiohttp, real files or the system clock, and never imports the client.
Rules: a driver awaits and never decides; after each ``await`` it checks the epoch again; every wait has a deadline,
every queue a limit; every task has an owner.
"""
