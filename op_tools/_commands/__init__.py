"""The command line: the parser of each command, in a module with a function add(). None imports torch: help and errors of usage are quick."""
