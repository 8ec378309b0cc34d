"""The pretended closing table."""

from __future__ import annotations

from argparse import Namespace


def run(arguments: Namespace) -> None:
    print("TABLE")
