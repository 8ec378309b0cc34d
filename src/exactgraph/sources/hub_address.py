"""Whether ``HF_ENDPOINT`` is an address: asked before ``huggingface_hub`` is imported, which fails on a broken one."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from exactgraph.refusal import UserError


def check() -> None:
    """Refuse an ``HF_ENDPOINT`` that no request can be sent to."""
    address = os.environ.get("HF_ENDPOINT", "")
    try:
        parts = urlsplit(address)
        # Reading the port is what finds a bad one.
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if address and not usable:
        raise UserError(
            f"HF_ENDPOINT is {address!r}, which is no address of a hub: set it to one such as https://hub.example.org, or "
            f"unset it."
        )
