"""The questions that an engineer asks of a program at night, in their order, each by a command of op-tools: op-tools diagnose.

`program` makes commands, `runs` runs them and watches, `questions` asks, `session` keeps order, budget and state, `answer` says it.
"""
