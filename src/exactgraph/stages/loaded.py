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
from exactgraph.refusal import UserError
from exactgraph.sources.manifest import check as check_files
from exactgraph.sources.spec import allows_code
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
        from exactgraph.protocol.questions import check_context, questions
        from exactgraph.runtime.load import default_device, load_model, load_tokenizer

        check(environment)
        manifest = place.manifest()
        problems = check_files(place.model_dir, manifest)
        if problems:
            raise UserError(f"The model in {place.model_dir} is not the one that was downloaded: {problems[0]}. Delete it.")
        protocol = place.protocol()
        device = default_device()
        remote_code = allows_code(manifest["source"])
        tokenizer = load_tokenizer(place.model_dir, remote_code) if manifest["prompts"] == "text" else None
        model = load_model(place.model_dir, protocol["dtype"], device, remote_code)
        # The protocol stops at a length: every answer has the same number of steps on every device, and what a model writes
        # after its end-of-sequence token tests equality as well as what comes before.
        model.generation_config.eos_token_id = None
        asked = questions(protocol, place.model_dir, tokenizer)
        check_context(asked, getattr(model.config.get_text_config(), "max_position_embeddings", None))
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
