"""No torch program needed: results and their tables, verdicts, options and rows as the core declares them, files."""
