"""Before the first run: which operators of a program's source will work on a device."""
