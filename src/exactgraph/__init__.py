"""exactgraph makes Hugging Face decoding fast on NVIDIA GPUs without changing one generated token, and proves it there."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exactgraph.runtime.ahead import precompute as precompute
    from exactgraph.runtime.not_optimized import NotOptimized as NotOptimized
    from exactgraph.runtime.not_optimized import NotOptimizedWarning as NotOptimizedWarning
    from exactgraph.runtime.optimize import optimize as optimize
    from exactgraph.runtime.optimize import optimized as optimized
    from exactgraph.runtime.optimize import restore as restore

__version__ = "0.1.0"

# Imported when first asked for, since the command line lives without torch; relative, so that no stage's code comes to include
# the runtime library because it imports this package.
_LAZY = {
    "NotOptimized": ".runtime.not_optimized",
    "NotOptimizedWarning": ".runtime.not_optimized",
    "optimize": ".runtime.optimize",
    "optimized": ".runtime.optimize",
    "precompute": ".runtime.ahead",
    "restore": ".runtime.optimize",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
