"""op-tools conformance: is every operator of a device right? Cases, the runs over them, and reports."""
