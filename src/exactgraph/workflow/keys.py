"""The key that a result depends on, as a path.

``artifacts/<model>@<commit>/<device>/<env>/<protocol>``: anything that could change a result changes the path, so that
results of two keys never meet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from exactgraph.refusal import UserError

ROOT = "artifacts"
#: Below it, the configuration that the last run worked with.
CONFIG = "config.json"

# Snakemake's patterns for the three levels of folders, and what its wildcards may match.
MODEL_PATTERN = f"{ROOT}/{{model}}@{{commit}}"
ENVIRONMENT_PATTERN = f"{MODEL_PATTERN}/{{device}}/{{env}}"
KEY_PATTERN = f"{ENVIRONMENT_PATTERN}/{{protocol}}"
CONSTRAINTS = {
    "slot": "[A-Za-z0-9][A-Za-z0-9_-]*",
    "model": "[a-z0-9][a-z0-9.-]*",
    "commit": "[0-9a-f]{12}",
    "device": "[a-z0-9][a-z0-9_-]*",
    "env": "[0-9a-f]{16}",
    "protocol": "[0-9a-f]{16}",
    "candidate": "[A-Za-z0-9][A-Za-z0-9-]*",
    "run": "[1-9][0-9]*",
}

_FOLDER = re.compile(
    "(?:(?P<root>.*)/)?(?P<model>{model})@(?P<commit>{commit})/(?P<device>{device})/(?P<env>{env})/(?P<protocol>{protocol})".format(
        **CONSTRAINTS
    )
)


@dataclass(frozen=True)
class Key:
    """One (model, device, environment, protocol); ``root`` is the artifacts folder."""

    model: str
    commit: str
    device: str
    env: str
    protocol: str
    root: Path = Path(ROOT)

    @classmethod
    def parse(cls, folder: Path | str) -> Key:
        """The key whose folder this is."""
        found = _FOLDER.fullmatch(str(folder).rstrip("/"))
        if not found:
            raise UserError(
                f"{folder} is not the folder of a result: such a path ends in "
                f"<model>@<commit>/<device>/<environment>/<protocol>, with 12, 16 and 16 hexadecimal digits."
            )
        parts = found.groupdict()
        root = Path(parts.pop("root") or ".")
        return cls(**parts, root=root)

    @property
    def model_folder(self) -> Path:
        """The folder of the weights and their manifest."""
        return self.root / f"{self.model}@{self.commit}"

    @property
    def environment_folder(self) -> Path:
        """The folder of ``environment.json``."""
        return self.model_folder / self.device / self.env

    @property
    def folder(self) -> Path:
        """The folder of the result itself."""
        return self.environment_folder / self.protocol

    @property
    def resolved(self) -> Path:
        """Where the source's commit is written down."""
        return self.root / "sources" / f"{self.model}.json"


def model_outputs(key: Key) -> list[str]:
    """What the stages write for the model alone."""
    return [str(key.model_folder / name) for name in ("model", "model.json")]


def key_outputs(key: Key, candidates: list[str], baselines: int) -> list[str]:
    """Every output of every stage below the model: a target that lists them all cannot rest on a missing one."""
    names = ["protocol.json"]
    names += [f"baseline/run{run}.json" for run in range(1, baselines + 1)]
    names += ["frozen.json", "reference.json", "profile.json", "skips.json"]
    names += [f"candidates/{candidate}/{name}.json" for candidate in candidates for name in ("plan", "validation")]
    names += ["ranking.json", "order.json", "confirmation.json", "receipt.json"]
    names += ["report/report.md", "report/report.html"]
    return [str(key.environment_folder / "environment.json"), *(str(key.folder / name) for name in names)]
