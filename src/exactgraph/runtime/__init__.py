"""A candidate at work in a model: installation, guards, the decode loop behind ``model.generate``."""

import logging

# Says nothing by itself: without a handler here, logging would write warnings to standard error, beside the warning proper.
logging.getLogger("exactgraph").addHandler(logging.NullHandler())
