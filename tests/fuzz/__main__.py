"""``python -m tests.fuzz --sequences 500 --seed 0 --out FILE``: random sequences, optimised and eager, compared.

Pairs of processes work side by side, each pair on its share of the sequences: one with sessions, one that only ever ran eager.
Ends with 1 where anything differed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.fuzz.compare import by_kind, differences, errors
from tests.fuzz.sequences import Sequence, sequence

from exactgraph.canonical import digest, file_digest, read_json, write_json
from exactgraph.environment.probe import present

_PACKAGE = Path(__file__).parents[2] / "src" / "exactgraph"
_HERE = Path(__file__).parent
_WAYS = ("optimised", "eager")


def fuzz(count: int, seed: int) -> dict[str, Any]:
    """``count`` sequences from ``seed`` on, as the document that is kept."""
    probe = present("auto")
    sequences = [sequence(number, probe["device"]["kind"]) for number in range(seed, seed + count)]
    pairs = max(1, min(8, (os.cpu_count() or 2) // 2, count))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="exactgraph-fuzz-") as folder:
        shares = [sequences[share::pairs] for share in range(pairs)]
        done = _played(shares, Path(folder))
    found = [
        difference
        for share, (got, expected) in zip(shares, done, strict=True)
        for difference in differences(share, got, expected)
    ]
    ordered = [entry for share in shares for entry in share]
    played = [entry for got, _ in done for entry in got]
    return {
        "code": digest({path.relative_to(_PACKAGE).as_posix(): file_digest(path) for path in sorted(_PACKAGE.rglob("*.py"))}),
        "fuzz_code": digest({path.name: file_digest(path) for path in sorted(_HERE.glob("*.py"))}),
        "environment": probe["environment"],
        "device": probe["device"],
        "sequences": count,
        "seeds": {"first": seed, "count": count},
        "silent_differences": len(found),
        "differences": found,
        # Where eager dies, all that can be compared is of what; that must stay rare.
        "errors": sum(errors(expected) for _, expected in done),
        "by_kind": by_kind(ordered, played),
        "seconds": round(time.monotonic() - started, 1),
    }


def _played(shares: list[list[Sequence]], folder: Path) -> list[tuple[Any, Any]]:
    """Results of both ways, per share. A process that dies ends the fuzz: what it would have said nobody knows."""
    running = []
    for number, share in enumerate(shares):
        write_json(folder / f"{number}.json", share)
        for way in _WAYS:
            command = [
                sys.executable,
                "-m",
                "tests.fuzz.worker",
                way,
                f"{folder}/{number}.json",
                f"{folder}/{number}.{way}.json",
            ]
            running.append(subprocess.Popen(command, cwd=Path(__file__).parents[2]))
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit(f"A process of the fuzz died, with codes {codes}: what it would have found is not known.")
    return [tuple(read_json(folder / f"{number}.{way}.json") for way in _WAYS) for number in range(len(shares))]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    document = fuzz(asked.sequences, asked.seed)
    write_json(asked.out, document)
    calls = {path: sum(row[path] for row in document["by_kind"].values()) for path in ("captured", "eager", "refused")}
    print(
        f"{document['sequences']} sequences, {document['silent_differences']} silent differences, calls {calls}",
        file=sys.stderr,
    )
    for difference in document["differences"]:
        print(difference, file=sys.stderr)
    return 1 if document["silent_differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
