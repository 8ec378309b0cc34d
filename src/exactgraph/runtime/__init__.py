"""A candidate at work in a model: installation, guards, the decode loop behind ``model.generate``."""
