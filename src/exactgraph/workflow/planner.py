"""What the Snakefile asks while it plans: the files a slot needs, and the parameters that tell when a stage is out of date."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from exactgraph.canonical import read_json, short, write_json
from exactgraph.environment import nvml
from exactgraph.environment.device import Device
from exactgraph.environment.precision import choose
from exactgraph.refusal import Refused, UserError
from exactgraph.workflow import config as settings
from exactgraph.workflow.guard import Guard
from exactgraph.workflow.keys import KEY_PATTERN, ROOT, Key, key_outputs, model_outputs
from exactgraph.workflow.look import look
from exactgraph.workflow.serving import ANY
from exactgraph.workflow.slots import resources
from exactgraph.workflow.stage_digest import stage_digest


class Planner:
    """The plan of one Snakemake process; ``workflow`` is Snakemake's, ``config`` has passed the schema."""

    def __init__(self, config: settings.Config, workflow: Any) -> None:
        settings.check(config)
        self.config = config
        self.sources = settings.sources(config)
        self.candidates = settings.all_candidates(config)
        self.slot_resources = resources(config["devices"])
        self._workflow = workflow
        self._guard = Guard(workflow, Path(ROOT))
        self._refused: set[str] = set()
        self._looks: dict[str, str] = {}

    @property
    def runs(self) -> range:
        """The numbers of the baseline runs."""
        return range(1, self.config["protocol"]["baselines"] + 1)

    def begin(self) -> None:
        """At the first question of a run that writes: take the folder, say what comes, leave the configuration for stages."""
        try:
            entered = self._guard.enter()
            if entered:
                write_json(settings.RESOLVED, self.config)
        except UserError as error:
            # Any other exception from an input function would reach the user as a traceback.
            sys.exit(str(error))
        except OSError as error:
            sys.exit(f"Nothing can be written to {ROOT}/ ({error.strerror}): free some space, or see to its permissions.")
        if entered:
            self._check_profile()
            print(self._opening(), file=sys.stderr)
            self._guard.sweep([*Path(ROOT).glob("slots/*/probe.json"), *Path(ROOT).glob("sources/*.json")])

    def targets(self, checkpoints: Any) -> list[Callable[[Any], list[str]]]:
        """One input function for each slot and source, so that a probe or a source that fails stops only its own."""

        def target(slot: str, model: str) -> Callable[[Any], list[str]]:
            return lambda wildcards: self.outputs(checkpoints, slot, model)

        return [target(slot, model) for slot in self.config["devices"] for model in self.sources]

    def outputs(self, checkpoints: Any, slot: str, model: str) -> list[str]:
        """Every file that confirming ``model`` on ``slot`` makes, as far as the discovery checkpoints have been answered."""
        self.begin()
        found = str(checkpoints.probe.get(slot=slot).output[0])
        probe = _discovered(found)
        if probe["refusal"]:
            self._refuse(slot, probe["refusal"]["sentence"])
            return [found]
        try:
            choose(Device(**probe["device"]), self.config["precision"])
        except Refused as refused:
            self._refuse(slot, str(refused))
            return [found]
        if model not in settings.wanted(self.config, probe["rehearsal"]):
            return [found]
        resolved_path = str(checkpoints.resolve.get(model=model).output[0])
        resolved = _discovered(resolved_path)
        token_ids = settings.has_token_ids(resolved)
        task = settings.task(self.config, model)
        protocol = settings.protocol_for(self.config, probe["precision"], probe["rehearsal"], token_ids, task)
        key = Key(model, resolved["commit"], probe["device"]["id"], probe["environment"]["key"], short(protocol))
        files = model_outputs(key) + key_outputs(key, self.candidates, len(self.runs))
        self._guard.sweep(files)
        return [found, resolved_path, *files]

    def code(self, stage: str) -> Callable[[Any], str]:
        """A parameter that changes with the code of ``stage`` and, where a rule has one, of its candidate."""

        def parameter(wildcards: Any) -> str:
            # Reached also where a file is asked for by name and the target's functions never run.
            self.begin()
            return stage_digest(stage, wildcards.get("candidate"))

        return parameter

    def priority(self, wildcards: Any) -> int:
        """The most promising candidate of a key first, as its profile says; 0 before there is one, and for controls."""
        profile = Path(KEY_PATTERN.format(**wildcards)) / "profile.json"
        if not profile.is_file():
            return 0
        order: list[str] = read_json(profile)["order"]
        name = wildcards.candidate
        return len(order) - order.index(name) if name in order else 0

    def seen(self, wildcards: Any) -> str:
        """What a look at the slot's machine shows, so that its probe runs again when that changes.

        Only the main process records parameters; a job's own process may be on another machine and must not look.
        """
        if not self._workflow.is_main_process:
            return ""
        slot = wildcards.slot
        if slot not in self._looks:
            self._looks[slot] = look(slot, self.config["devices"].get(slot, {}), self._workflow)
        return self._looks[slot]

    def visible(self, wildcards: Any) -> str:
        """The GPUs that the slot of a probe is, in the words of ``CUDA_VISIBLE_DEVICES``, or ``any``."""
        return self.visible_of(wildcards.slot)

    def visible_of(self, slot: str) -> str:
        """The same of a slot by its name."""
        return str(self.config["devices"].get(slot, {}).get("visible", ANY))

    def seen_source(self, wildcards: Any) -> str:
        """What a look at the source shows, so that a changed local folder is resolved again."""
        return settings.source_signature(self.sources[wildcards.model]) if self._workflow.is_main_process else ""

    def spec(self, wildcards: Any) -> str:
        """The source spec of a model."""
        return self.sources[wildcards.model]

    def _opening(self) -> str:
        if not self._workflow.local_exec:
            # This machine's GPUs, or that it has none, say nothing of the slots.
            through, slots = self._workflow.executor_plugin.name, ", ".join(self.config["devices"])
            return f"exactgraph confirms {', '.join(settings.models(self.config))} through {through} on {slots}."
        try:
            gpus = nvml.gpus()
        except UserError as error:
            return str(error)
        if nvml.visible(gpus):
            return f"exactgraph confirms {', '.join(settings.models(self.config))}.{self._idle(gpus)}"
        hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')} names none of this machine's GPUs"
        return (
            f"REHEARSAL: {hidden if gpus else 'this machine has no NVIDIA GPU'}. {settings.rehearsal_model(self.config)} goes "
            f"through the whole workflow on the CPU with emulated capture, compared for exactness and never ranked for speed."
        )

    def _idle(self, found: list[nvml.Gpu]) -> str:
        """That some of the slots' GPUs will have nothing to do, which nobody would notice; empty where all will."""
        pins = [self.visible_of(slot) for slot in self.config["devices"]]
        named = [gpu for pin in pins for gpu in nvml.visible(found, {"CUDA_VISIBLE_DEVICES": pin})]
        gpus = sum(ANY in pins or gpu in named for gpu in nvml.visible(found))
        offered = self._workflow.global_resources
        jobs = min(offered[name].value for name in ("gpu", "_cores"))
        if jobs >= gpus:
            return ""
        return (
            f" Of {gpus} GPUs, {jobs} at a time will have work: "
            f"snakemake --cores {gpus} --resources gpu={gpus} confirm uses all of them."
        )

    def _check_profile(self) -> None:
        if not self._workflow.local_exec:
            for name, slot in self.config["devices"].items():
                if "visible" in slot:
                    sys.exit(
                        f"Slot {name}: its GPUs are the scheduler's choice; leave out 'visible', or run without a scheduler."
                    )
            return
        # Snakemake passes over a --workflow-profile that does not exist without a word. A scheduler counts GPUs itself.
        if "gpu" not in self._workflow.global_resources:
            sys.exit(
                "Nothing says how many jobs may use a GPU at once: the profile on the command line does not exist, or does "
                "not set 'resources: gpu'. Name a folder of profiles/, leave the option out, or add --resources gpu=1."
            )

    def _refuse(self, slot: str, sentence: str) -> None:
        if slot not in self._refused:
            self._refused.add(slot)
            print(f"Slot {slot}: {sentence}", file=sys.stderr)


def _discovered(path: str) -> Any:
    try:
        return read_json(Path(path))
    except orjson.JSONDecodeError as error:
        sys.exit(f"{path} is damaged ({error}): delete it and run again.")


def shell_prefix() -> str:
    """What every rule's shell command begins with, here and wherever a job's own process plans again.

    ``python`` is the interpreter that runs Snakemake, and a stage learns who started it (see ``parent.py``).
    """
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return "set -euo pipefail; export EXACTGRAPH_PARENT=$PPID; "
