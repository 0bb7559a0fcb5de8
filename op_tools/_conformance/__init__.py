"""op-tools conformance: is every operator of a device right? Cases, the runs over them, and reports."""

LISTED = ("op_db", "models")
"""Sources whose cases are in the package."""
DEFAULT_SOURCES = (*LISTED, "faults")
CHOICES = (*DEFAULT_SOURCES, "captures", "mine")
"""Sources that options name."""
SOURCES = (*CHOICES, "patterns")
