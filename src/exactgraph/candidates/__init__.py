"""Configurations that may replace eager, one module a family, behind one interface (:mod:`exactgraph.candidates.base`)."""
