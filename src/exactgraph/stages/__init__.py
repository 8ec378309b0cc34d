"""One module a stage of the workflow: files in, one file out, written whole."""
