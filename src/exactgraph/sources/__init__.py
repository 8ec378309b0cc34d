"""Where a model comes from: a source spec in, a local Hugging Face model folder and its manifest out.

``spec`` parses, ``resolve`` pins to a commit, ``download`` makes the folder, ``manifest`` digests and checks it. ``spec`` and
``resolve`` import neither torch nor transformers: the workflow's main process uses them.
"""
