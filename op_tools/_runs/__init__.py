"""Two or more runs of a program against each other."""

ITERATION_SEED = 10086
"""Of all random numbers of an iteration that is saved or compared."""
