"""Before the first run: what of a program's source will work on a device."""
