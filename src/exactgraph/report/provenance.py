"""Where the figures come from: environment, protocol, and how to repeat and to verify them."""

from __future__ import annotations

import json
import shlex
from typing import Any

from exactgraph.canonical import digest
from exactgraph.report.document import Block, Code, Folded, Heading, Mono, Paragraph, Row, Table, Text
from exactgraph.report.reading import candidates, count, rehearsal

_SETS = {
    "heldout": "validation and timing",
    "confirm": "confirmation alone",
    "long": "confirmation alone, one long run",
}


def environment(predicate: dict[str, Any]) -> list[Block]:
    """Model, device, and every fact that the environment's key covers."""
    model, device, found = predicate["model"], predicate["device"], predicate["environment"]
    facts = found["facts"]
    flags = {name: value for name, value in facts.items() if name.startswith("flag ")}
    first = {
        "model": f"{model['source']}, {model['architecture']}",
        "weights": f"{model['parameters']:,} parameters, stored as {model['dtype']}, {model['weight_bytes'] / 1e9:.2f} GB",
        "licence": model["license"] or "none stated",
        "device": _device(device),
        "precision": predicate["precision"],
    }
    rest = {name: value for name, value in facts.items() if name not in flags}
    blocks: list[Block] = [Heading(3, "Environment"), _facts(first | rest)]
    if predicate["gpus"]:
        used = count(len(predicate["gpus"]), "GPU")
        blocks.append(Paragraph((f"The processes of this run used {used} of this kind.",), quiet=True))
    if flags:
        shown = {name.removeprefix("flag "): value for name, value in flags.items()}
        blocks.append(Folded(f"torch's flags ({len(flags)})", (_facts(shown),)))
    return blocks


def protocol(predicate: dict[str, Any]) -> list[Block]:
    """What was asked, and how often."""
    whole = predicate["protocol"]["whole"]
    sets = {name: whole["sets"][name] for name in [*_SETS, *whole["sets"]] if name in whole["sets"]}
    rows = tuple(
        Row(((Mono(name),), (_SETS.get(name, "-"),), (str(len(asked["prompts"])),), (str(asked["new_tokens"]),)))
        for name, asked in sets.items()
    )
    words = (
        f"{str(whole['sampling']).capitalize()} decoding, batch {whole['batch']}, answers of a fixed length. "
        f"{count(whole['baselines'], 'fresh process', 'fresh processes')} for a baseline, "
        f"{count(whole['warmups'], 'warm-up')}, {count(whole['repetitions'], 'measured repetition')} of each "
        f"held-out prompt, {whole['timed'] or 'none'} of them timed beside eager. Token IDs decide, with no tolerance; "
        "digests of all logits grade."
    )
    others = [str(batch) for batch in whole.get("batches", []) if batch > 1]
    if others:
        words += f" Batches of {', '.join(others)} are compared with eager in the same process, and not timed."
    return [
        Heading(3, "Protocol"),
        Paragraph((words,)),
        Table(("prompts", "seen by", "number", "new tokens each"), rows, frozenset({2, 3})),
    ]


def configuration(predicate: dict[str, Any]) -> str:
    """The ``config.yaml`` that asks for the same again; its values are JSON, which YAML reads."""
    whole, source = predicate["protocol"]["whole"], predicate["model"]["source"]
    sets = whole["sets"]
    lengths: dict[str, Any] = {
        "new_tokens": sets["heldout"]["new_tokens"],
        "warmups": whole["warmups"],
        "repetitions": whole["repetitions"],
        "long_run": sets["long"]["new_tokens"],
        "step_lengths": whole["step_lengths"],
        **({"windows": whole["windows"]} if "windows" in whole else {}),
    }
    batches = whole.get("batches", [1])
    model = {"source": source, "task": whole["task"]} if "task" in whole else source
    entries: dict[str, Any] = {
        "models": [model],
        "candidates": [candidate.name for candidate in candidates(predicate, control=False)],
        "attention_preference": whole["attention_preference"],
    }
    if rehearsal(predicate):
        prompts = len(sets["heldout"]["prompts"])
        entries |= {"protocol": {"baselines": whole["baselines"], "batches": batches}}
        entries |= {"rehearsal": {"model": model, "prompts": prompts, **lengths}}
    else:
        lengths |= {"timed": whole["timed"], "baselines": whole["baselines"], "batches": batches}
        entries |= {"precision": whole["dtype"], "protocol": lengths}
    return "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in entries.items())


def place(receipt: dict[str, Any]) -> str:
    """Where the workflow writes this receipt."""
    predicate = receipt["predicate"]
    keys = predicate["device"]["id"], predicate["environment"]["key"], predicate["protocol"]["key"]
    return "/".join(["artifacts", receipt["subject"][0]["name"], *keys, "receipt.json"])


def repeat(receipt: dict[str, Any]) -> list[Block]:
    """Commands for doing it again, and for checking that it was done."""
    predicate, where = receipt["predicate"], shlex.quote(place(receipt))
    facts, machine = predicate["environment"]["facts"], predicate["device"]["name"]
    versions = [f"{name} {facts[name]}" for name in ("torch", "transformers", "driver") if name in facts]
    named = f" ({', '.join(versions)})" if versions else ""
    return [
        Heading(3, "How to repeat"),
        Paragraph(
            (
                f"In a checkout of exactgraph, on a machine with {machine}{named}, write this as ",
                Mono("config.yaml"),
                ". Another GPU or other versions give a receipt of their own, under a path of its own.",
            )
        ),
        Code(configuration(predicate), wrap=True),
        Code("make confirm"),
        Heading(3, "How to verify"),
        Paragraph(
            (
                "Every digest and the verdict follow from the files beside the receipt; no GPU is needed for that. ",
                Mono("--rerun"),
                " confirms again in a fresh process. ",
                Mono("exactgraph status"),
                " says whether the receipt still speaks of the present machine, libraries and code.",
            )
        ),
        Code(f"exactgraph verify {where}\nexactgraph verify {where} --rerun\nexactgraph status", wrap=True),
        Folded("Digests", (_digests(receipt),)),
    ]


def _digests(receipt: dict[str, Any]) -> Table:
    predicate = receipt["predicate"]
    entries: list[tuple[Text, Text]] = [
        (("this receipt",), (Mono(digest(receipt)),)),
        (("weights",), (Mono(receipt["subject"][0]["digest"]["sha256"]),)),
        (("environment key",), (Mono(predicate["environment"]["key"]),)),
        (("protocol key",), (Mono(predicate["protocol"]["key"]),)),
    ]
    entries += [((Mono(name),), (Mono(value),)) for name, value in predicate["evidence"].items()]
    return Table(("what", "SHA-256, or the first 16 digits of it"), tuple(map(Row, entries)))


def _device(device: dict[str, Any]) -> str:
    parts = [device["name"], device["id"]]
    if device.get("capability"):
        parts.append(f"compute capability {device['capability']}")
    if device.get("sm_count"):
        parts.append(f"{device['sm_count']} multiprocessors")
    if device.get("mig"):
        parts.append(f"MIG {device['mig']}")
    return ", ".join(parts)


def _facts(facts: dict[str, str]) -> Table:
    return Table(("fact", "value"), tuple(Row(((name,), (str(value),))) for name, value in facts.items()))
