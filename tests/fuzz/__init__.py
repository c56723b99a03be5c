"""Hostile requests, generated from the tables of APIs and routes, against a broker process that measures itself.

``python -m tests.fuzz --requests 100000`` runs it by hand and prints the counts; ``--seed`` repeats a run.
"""
