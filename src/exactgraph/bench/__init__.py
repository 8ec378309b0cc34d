"""``exactgraph bench``: eager and candidates side by side in one process.

A quick look, not evidence: nothing here enters a receipt, which rests on fresh processes. It compares and times with the code
that validation does.
"""
