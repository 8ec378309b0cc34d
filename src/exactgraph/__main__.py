"""``python -m exactgraph``."""

from exactgraph.cli import main

main()
