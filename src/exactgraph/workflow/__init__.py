"""What the Snakemake workflow plans with: path keys, configuration, stage digests, the guard of the artifacts folder.

Nothing here imports torch: the workflow's main process may run where there is none.
"""
