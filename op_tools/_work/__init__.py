"""The work of the commands of op-tools: a module each, which is imported when its command is run, and torch with it."""
