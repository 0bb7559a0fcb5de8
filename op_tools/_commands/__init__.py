"""The commands of op-tools: a module each, with a function add() that gives the command line its parser."""
