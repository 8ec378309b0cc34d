"""Are the weights in memory those that a receipt speaks of?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exactgraph.refusal import Refusal
from exactgraph.sources.manifest import check, weights_digests_of_state


class Weights:
    """The weights of a loaded model, digested when first asked for and once."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._digests: set[str] | None = None

    @property
    def digests(self) -> set[str]:
        if self._digests is None:
            self._digests = weights_digests_of_state(self._model.state_dict())
        return self._digests

    def differ(self, manifest: dict[str, Any], folder: Path) -> Refusal | None:
        """Why the weights are not those of ``manifest``, whose model is in ``folder`` or not at hand; None where they are.

        Weights of the stored dtype have the manifest's own digest. Others are compared with the stored ones as transformers
        loads them, since it may convert, rename and merge: bit for bit, in the model's own class and dtype.
        """
        if manifest["weights_digest"] in self.digests:
            return None
        named = f"{manifest['model']}@{manifest['commit']}"
        if not folder.is_dir():
            sentence = (
                f"The weights of this model do not have the digest of {named}, as those stored in {manifest['dtype']} do, and "
                f"{folder} is not there to convert those: give the folder of artifacts, or load the model as it is stored."
            )
            return Refusal("other-weights", sentence)
        problems = check(folder, manifest)
        if problems:
            return Refusal("other-weights", f"The stored weights of {named} are not what was proved: {problems[0]}")
        if self.digests.isdisjoint(weights_digests_of_state(_stored(folder, self._model).state_dict())):
            sentence = (
                f"The weights of this model are not those of {named}: load it from {folder}, or run the workflow on them."
            )
            return Refusal("other-weights", sentence)
        return None


def _stored(folder: Path, model: Any) -> Any:
    """The model in ``folder`` as it would be loaded for ``model``: by its class, so that no other code is run."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return type(model).from_pretrained(folder, dtype=model.dtype, local_files_only=True)
    finally:
        if shown:
            logging.enable_progress_bar()
