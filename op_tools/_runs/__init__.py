"""Two or more runs of a program against each other."""
