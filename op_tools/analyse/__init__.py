"""Before the first run: which operators of a program's source will work on a device."""

MODES = ("torch_apis", "third_party", "affinity_apis", "dynamic_shape")
"""The names to look for."""
