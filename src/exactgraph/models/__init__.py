"""What exactgraph has to know about model classes: which module plays which part, and how caches are named."""
