"""Where a stage runs: which device, under which environment, and how a GPU is held by one job at a time."""
