"""What every stage that runs a model shares: one GPU held, the environment of the key checked, the model loaded."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from exactgraph.environment.caches import own_caches
from exactgraph.environment.gpulock import hold_gpu
from exactgraph.protocol.batches import beyond_one
from exactgraph.protocol.tasks import TRANSCRIBE, stop_at_length, transcribes
from exactgraph.refusal import UserError
from exactgraph.sources import own_class
from exactgraph.sources.manifest import check as check_files
from exactgraph.sources.path import TOKENIZER_FILES
from exactgraph.sources.spec import allows_code, class_of
from exactgraph.stages.place import Place
from exactgraph.workflow.serving import pins

if TYPE_CHECKING:
    import torch

    from exactgraph.environment.gpulock import Hold
    from exactgraph.protocol.questions import Questions


@dataclass(frozen=True)
class Loaded:
    """A loaded model with its questions, on the device of the key."""

    place: Place
    model: Any
    tokenizer: Any | None
    questions: Questions
    protocol: dict[str, Any]
    environment: dict[str, Any]
    manifest: dict[str, Any]
    device: torch.device
    hold: Hold
    started: float

    def process(self) -> dict[str, Any]:
        """Which process this was, for the evidence."""
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "gpu_uuid": self.hold.uuid,
            "started": datetime.fromtimestamp(self.started, UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self.started, 3),
        }


@contextmanager
def open_model(place: Place) -> Iterator[Loaded]:
    """Hold a GPU of the key's device, check that this is the key's environment and model, and load the model.

    Raises ``UserError`` where the process woke up on another device or in another environment, or where the model's files are
    not those of the manifest.
    """
    started = time.time()
    environment = place.environment()
    device_id = environment["device"]["id"]
    pinned = pins(place.root, device_id, environment["environment"]["key"])
    with own_caches(), hold_gpu(device_id, pins=pinned) as hold:
        # Only now: CUDA reads the visible devices once, when torch first asks.
        from exactgraph.environment.probe import check
        from exactgraph.protocol.questions import check_context, context_of, questions
        from exactgraph.runtime.load import default_device, load_model, load_tokenizer

        check(environment)
        manifest = place.manifest()
        problems = check_files(place.model_dir, manifest)
        if problems:
            raise UserError(f"The model in {place.model_dir} is not the one that was downloaded: {problems[0]}. Delete it.")
        protocol = place.protocol()
        device = default_device()
        remote_code = allows_code(manifest["source"])
        _check_task(protocol, manifest)
        has_tokenizer = any(name in manifest["files"] for name in TOKENIZER_FILES)
        tokenizer = load_tokenizer(place.model_dir, remote_code) if has_tokenizer else None
        own = class_of(manifest["source"])
        if own is not None:
            own_class.check(own, manifest["code"])
        model = load_model(place.model_dir, protocol["dtype"], device, remote_code, own)
        _check_batches(protocol, model, manifest["source"])
        stop_at_length(model)
        asked = questions(protocol, place.model_dir, tokenizer, model)
        check_context(asked, context_of(model))
        yield Loaded(
            place=place,
            model=model,
            tokenizer=tokenizer,
            questions=asked,
            protocol=protocol,
            environment=environment,
            manifest=manifest,
            device=device,
            hold=hold,
            started=started,
        )


def _check_task(protocol: dict[str, Any], manifest: dict[str, Any]) -> None:
    """Only the files of a model from the hub or from a folder tell what it is; before, its configuration is believed."""
    hears, source = manifest["prompts"] == "windows", manifest["source"]
    if hears and not transcribes(protocol):
        raise UserError(f"{source} is a speech model: write {{source: {source!r}, task: {TRANSCRIBE}}} for it in config.yaml.")
    if transcribes(protocol) and not hears:
        raise UserError(f"{source} is no speech model that is known here: leave task: {TRANSCRIBE} out for it in config.yaml.")


def _check_batches(protocol: dict[str, Any], model: Any, source: str) -> None:
    """Texts for an encoder are of many lengths, and a batch of them would be padded."""
    if model.config.is_encoder_decoder and beyond_one(protocol):
        raise UserError(f"{source} is an encoder-decoder, whose texts are asked one at a time: protocol.batches must be [1].")
