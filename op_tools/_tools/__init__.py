"""The tools as classes, and how programs run with them."""
