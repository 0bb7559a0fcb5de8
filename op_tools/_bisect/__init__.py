"""Which operators have to run elsewhere so that a program's result is right: the smallest such set, found by trials.

search: the order of trials, without knowing what a trial is. judge: is the outcome of a trial right. session: from the
opening to the report. processes, program: what a trial is, a process or a function of the program.
"""
