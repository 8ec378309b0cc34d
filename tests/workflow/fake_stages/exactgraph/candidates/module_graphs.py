"""A pretended candidate."""

import exactgraph.candidates.base  # noqa: F401
