"""CUDA-graph capture and replay, and its emulation for machines without a GPU.

The only room that touches CUDA graphs. Candidates hand it a function over static buffers; they never see a stream or a pool.
"""

from exactgraph.capture.buffers import buffer
from exactgraph.capture.graph import Capturer, Graph
from exactgraph.capture.select import capturer_for

__all__ = ["Capturer", "Graph", "buffer", "capturer_for"]
