"""The report of one or more receipts, section by section."""

from __future__ import annotations

from typing import Any

from exactgraph.report.document import Banner, Block, Document, Figures, Heading, Mono, Paragraph
from exactgraph.report.findings import baseline, confirmation, controls, rejected
from exactgraph.report.hotspots import hotspots
from exactgraph.report.ladder import ladder
from exactgraph.report.provenance import environment, protocol, repeat
from exactgraph.report.published import published
from exactgraph.report.reading import candidates, count, equal, percent, rehearsal
from exactgraph.report.several import several


def report(receipts: list[dict[str, Any]]) -> Document:
    """The document. What other people published stands at its end, and only where something was timed here."""
    names = [receipt["subject"][0]["name"] for receipt in receipts]
    document = Document(f"exactgraph report: {', '.join(names)}")
    document.add(Heading(1, "exactgraph report"))
    for receipt in receipts:
        document.add(*_receipt(receipt))
    if not any(rehearsal(receipt["predicate"]) for receipt in receipts):
        document.add(*published())
    return document


def _receipt(receipt: dict[str, Any]) -> list[Block]:
    predicate = receipt["predicate"]
    device = predicate["device"]
    verdict = _verdict(predicate)
    blocks: list[Block] = [
        verdict,
        Heading(2, f"{receipt['subject'][0]['name']} on {device['name']}"),
        Paragraph((Mono(device["id"]), f", {predicate['precision']}, source ", Mono(predicate["model"]["source"]))),
    ]
    if not rehearsal(predicate):
        blocks = [*blocks[1:], verdict]
    blocks += [_figures(predicate)]
    for section in (ladder, several, hotspots, rejected, controls, confirmation, baseline, environment, protocol):
        blocks += section(predicate)
    blocks += repeat(receipt)
    if rehearsal(predicate):
        blocks.append(verdict)
    return blocks


def _verdict(predicate: dict[str, Any]) -> Banner:
    device, status, sentence = predicate["device"]["id"], predicate["status"], predicate["sentence"]
    if rehearsal(predicate):
        label = f"REHEARSAL on {device}" + ("" if status == "rehearsal" else f": {status}")
        end = " Only a run on an NVIDIA GPU gives a receipt that can say optimized."
        nothing = "" if "nothing was timed" in sentence else " Nothing was timed."
        return Banner("rehearsal", label, sentence + nothing + end)
    if status == "optimized":
        return Banner("good", "OPTIMIZED", sentence)
    return Banner("bad", f"NOT OPTIMIZED: {status}", sentence)


def _figures(predicate: dict[str, Any]) -> Figures:
    proposed = candidates(predicate, control=False)
    confirmed = next((candidate for candidate in proposed if candidate.name == predicate["confirmation"]["confirmed"]), None)
    if confirmed is not None and confirmed.timing and not rehearsal(predicate):
        timing, measured = confirmed.timing, confirmed.record["measured"]
        low, high = timing["interval"]
        interval = f"whole calls; {timing['confidence']:.0%} interval {low:.2f} to {high:.2f}"
        return Figures(
            (
                (f"{timing['ratio']:.2f}x", "as fast as eager", interval),
                (
                    f"{timing['candidate_tok_s']:.1f} tok/s",
                    f"with {confirmed.name}",
                    f"eager beside it {timing['eager_tok_s']:.1f}",
                ),
                (equal(confirmed.record["comparison"]), "answers equal to eager's", confirmed.record["grade"] or "-"),
                (percent(measured.get("share_of_floor")), "of the bandwidth floor", "weights read over copy bandwidth"),
            )
        )
    compared = [candidate for candidate in proposed if candidate.record["comparison"]]
    exact = [candidate for candidate in proposed if candidate.record["validation"]["status"] == "exact"]
    rest = "the others are explained below" if len(compared) < len(proposed) else "none was refused or failed"
    walked = len(predicate["confirmation"]["attempts"])
    return Figures(
        (
            (f"{len(compared)} of {len(proposed)}", "candidates compared with eager", rest),
            (f"{len(exact)} of {len(compared)}", "exact at validation", "token IDs, and bits where promised"),
            (confirmed.name if confirmed else "none", "confirmed", f"{count(walked, 'attempt')} in fresh processes"),
        )
    )
