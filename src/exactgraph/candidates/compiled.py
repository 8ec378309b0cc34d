"""Compilers and static caches, as candidates like any other.

They choose kernels, fuse roundings and reorder additions as they see fit, so none claims equal bits: the gate looks at the
tokens. ``compile`` is ``torch.compile`` of the forward pass. ``static`` decodes over transformers' static cache without
compiling, ``static-compile`` lets transformers compile for that cache, which it does by itself on an accelerator.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.protocol.grades import TOKEN_IDENTICAL
from exactgraph.refusal import Refused


class Compile(Candidate):
    id = "compile"
    claims = TOKEN_IDENTICAL

    def plan(self, model: Any, context: Context) -> Decisions:
        check_compiler(model.device)
        return {"compiled": "forward", "cache": "dynamic"}

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        # Lengths change with every step: a compiler that is not told compiles for the first, again for the second, and only
        # then for any.
        return Installation(forwards={model: torch.compile(model.forward, dynamic=True)})


class Static(Candidate):
    id = "static"
    claims = TOKEN_IDENTICAL

    def plan(self, model: Any, context: Context) -> Decisions:
        return {"compiled": None, "cache": "static"}

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        return Installation(arguments={"cache_implementation": "static", "disable_compile": True})


class StaticCompile(Candidate):
    id = "static-compile"
    claims = TOKEN_IDENTICAL

    def plan(self, model: Any, context: Context) -> Decisions:
        if model.device.type == "cpu":
            raise Refused("not-compiled-here", "transformers compiles for a static cache on accelerators only.")
        check_compiler(model.device)
        return {"compiled": "by transformers", "cache": "static"}

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        return Installation(arguments={"cache_implementation": "static"})


def check_compiler(device: torch.device) -> None:
    """Refuse by name where torch.compile lacks what it needs: Triton on a GPU, a C++ compiler on a CPU."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise Refused("no-compiler", "torch.compile needs Triton on a GPU, and it is not installed.")
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise Refused("no-compiler", "torch.compile needs a C++ compiler on a CPU, and there is none.") from None


CANDIDATES = {Compile.id: Compile(), Static.id: Static(), StaticCompile.id: StaticCompile()}
