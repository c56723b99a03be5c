"""Reading a run again: journals of simulated and real brokers, and the page that replays them.

Read ``journal.py`` (both forms of a journal as one sequence), then ``states.py`` (what each event changes), then
``sentences.py`` (what it means and why), then ``page.py``. ``record.py`` listens to a simulation.

Rule 1: nothing here talks to a cluster or changes one.
Rule 2: a state is folded in one place, ``states.py``; the page only applies the changes that it wrote down.
"""
