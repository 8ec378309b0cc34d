"""exactgraph makes Hugging Face decoding fast on NVIDIA GPUs without changing one generated token, and proves it there."""

__version__ = "0.1.0"
