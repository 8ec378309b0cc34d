"""Writing one safetensors file tensor by tensor, so that a model never has to fit in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import orjson
import torch

from exactgraph.sources.progress import bar


def write_bf16(path: Path, shapes: dict[str, tuple[int, ...]], chunks: Iterable[torch.Tensor]) -> None:
    """Write tensors of the given names and shapes as bfloat16.

    ``chunks`` yields bfloat16 CPU tensors that, laid end to end in row-major order, are all tensors in ``shapes``'s order.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file, bar("write", offset) as progress:
        file.write(len(text).to_bytes(8, "little") + text)
        written = 0
        for chunk in chunks:
            data = chunk.contiguous().view(torch.uint8).numpy()
            file.write(data.data)
            written += data.nbytes
            progress.update(data.nbytes)
    if written != offset:
        raise RuntimeError(f"{path.name} needs {offset} bytes of tensors and was given {written}")
