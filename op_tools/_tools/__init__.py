"""A class for each tool; processes that get the same tools; how a program runs with them."""
