"""Knowledge of torch: names, modules, graphs, devices, and the places at which torch gives way to the tools."""
