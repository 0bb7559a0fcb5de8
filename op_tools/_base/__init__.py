"""The only door to the core (core.py), tables of results, verdicts, options and rows as the core declares them, parts that other
packages bring, files that users write."""
