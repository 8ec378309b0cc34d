"""Writes a pretended report."""

from __future__ import annotations

from argparse import Namespace

from exactgraph.machine import note

from exactgraph.canonical import file_digest, whole_file


def run(arguments: Namespace) -> None:
    note("report", "")
    told = file_digest(arguments.subject)
    pages = {"report.md": f"The receipt {told}\n", "report.html": f"<!DOCTYPE html><p>The receipt {told}</p>\n"}
    for name, text in pages.items():
        with whole_file(arguments.out_dir / name) as file:
            file.write(text.encode())
