"""Floor 6: the deterministic simulator behind the same four ports.

Knows an event loop with virtual time, a network that loses, delays and cuts, a disk that forgets what was not synced.
Does not know the rules it runs, and replaces none of them: brokers and clients are the production code.
Rules: one seed, one trace, under any PYTHONHASHSEED; every method that would reach outside raises.

Not shown here: the aiohttp adapter, the real disk, threads, and other processes' schedulers; these have the contract
suites and the end-to-end tests.

Read cluster.py (a cluster and the language about it), plan.py (what a run does, and the fault budget), seeds.py and
plan_features.py (how a seed draws it), run.py (its phases), watch.py and invariants.py (what is watched), then
faults.py and workload.py.

Modelled and not drawn by seeds: swizzled clogs, links that are late (chaos scenarios have them).
"""
