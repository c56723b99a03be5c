"""Floor 7: the command line.

Knows click, tables and JSON output, exit codes and the configuration's sources.
Does not know the rules: each command is a call of a client, of a log reader, or of the world's constructors.
Rules: JSON output is a contract; human output goes through one place; errors end in a sentence and an exit code. A
command's docstring is its help, and has its examples: what follows ``Examples:`` stands behind the options.
"""
