"""Knowledge of torch: names of operators and modules, compiled graphs, devices, facts of a run; and the places at which torch gives way to
the tools."""
