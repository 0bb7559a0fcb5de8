"""A model on two devices or in two dtypes, module by module."""
