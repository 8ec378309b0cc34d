"""The pretended controls."""
