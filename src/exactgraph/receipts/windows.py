"""What a record shows of windows of a speech model, found again from the digests and tokens that lie in it."""

from __future__ import annotations

import re
from typing import Any

from exactgraph.protocol.window_ways import (
    EAGER,
    SEQUENTIAL,
    Record,
    asked_of,
    count,
    decide,
    modes,
    same_states,
    summary,
    turned_name,
    ways,
)
from exactgraph.receipts.evidence import Evidence, Inconsistent

_SHA256 = re.compile(r"[0-9a-f]{64}")


def windows_in(
    evidence: Evidence, record: dict[str, Any], exact: bool, names: set[str], timed: bool, what: str
) -> dict[str, Any] | None:
    """What to say of windows in a validation or an attempt, which is ``what``; None where none were to be asked.

    They are asked of what is ``exact`` without them and no control, of the prompt sets ``names``, and ``timed`` says whether
    that takes seconds. Raises :class:`Inconsistent` where it is otherwise, or where they are not the frozen windows.
    """
    asked, found = asked_of(evidence.protocol), record.get("windows")
    wanted = asked is not None and exact and not record["control"]
    if (found is not None) != wanted:
        raise Inconsistent(f"{what} {'lacks' if wanted else 'has'} windows, which it must{'' if wanted else ' not'} have.")
    if asked is None or found is None:
        return None
    refused = found["refused"]
    in_ways, in_modes = ([run for run in runs if run not in refused] for runs in (ways(asked), modes(asked)))
    if set(found["sets"]) != names:
        raise Inconsistent(f"{what} asks windows of {sorted(found['sets'])}, not of {sorted(names)}.")
    if not set(refused) <= {*ways(asked), *modes(asked)} - {EAGER, SEQUENTIAL} or not all(refused.values()):
        raise Inconsistent(f"{what} refuses a way or a mode of windows that it must not, or does not say why.")
    for name in sorted(names):
        where = f"{what}, windows of {name}:"
        _check_asked(evidence, found, name, count(asked), where)
        _check_states(found["sets"][name], in_ways, where)
    for name in sorted(names):
        _check_tokens(found, name, in_ways, in_modes, f"{what}, windows of {name}:")
    _check_seconds(found["seconds"], {*in_ways, *in_modes}, evidence.protocol["timed"] if timed else None, what)
    return summary(asked, found)


def decision(evidence: Evidence, confirmed: str | None) -> dict[str, Any] | None:
    """How windows are encoded and decoded by default with the confirmed candidate; None where that was not asked."""
    asked = asked_of(evidence.protocol)
    if confirmed is None or asked is None:
        return None
    attempt = next(found for found in evidence.confirmation["attempts"] if found["candidate"] == confirmed)
    return decide(asked, evidence.validation(confirmed)["windows"], attempt["windows"])


def _check_asked(evidence: Evidence, record: Record, name: str, number: int, where: str) -> None:
    """The frozen windows come first, with eager's frozen tokens; the rest are the same ones turned, none like another."""
    found, frozen = record["sets"][name], evidence.frozen["sets"][name]
    turns = -(-number // len(frozen))
    ids = [turned_name(frozen[index % len(frozen)]["prompt"], index // len(frozen), turns) for index in range(number)]
    if [window["id"] for window in found["windows"]] != ids:
        raise Inconsistent(f"{where} they are not the {number} that must be asked, in their order.")
    if len({window["digest"] for window in found["windows"]}) != number:
        raise Inconsistent(f"{where} two of them are the same.")
    if [len(tokens) for tokens in found["expected"]] != [evidence.protocol["sets"][name]["new_tokens"]] * number:
        raise Inconsistent(f"{where} eager's answers do not have the length that was asked for.")
    for window, tokens, trace in zip(found["windows"], found["expected"], frozen, strict=False):
        if (window["digest"], tokens) != (trace["prompt_digest"], trace["tokens"]):
            raise Inconsistent(f"{where} {window['id']} is not the frozen window with eager's frozen answer.")


def _check_states(found: dict[str, Any], there: list[str], where: str) -> None:
    """Hidden states of each window by each way that there is."""
    states = found["states"]
    whole = all(len(told) == len(found["windows"]) and all(map(_SHA256.fullmatch, told)) for told in states.values())
    if set(states) != set(there) or not whole:
        raise Inconsistent(f"{where} there is not one digest of hidden states for each of them, by {', '.join(there)}.")


def _check_tokens(record: Record, name: str, in_ways: list[str], in_modes: list[str], where: str) -> None:
    """Tokens of each window in each mode, from eager's hidden states and from those with other bits."""
    found = record["sets"][name]
    decoded = [way for way in in_ways if way == EAGER or not same_states(record, way)]
    if set(found["tokens"]) != set(decoded):
        raise Inconsistent(f"{where} there are tokens by {', '.join(found['tokens'])}, not by {', '.join(decoded)}.")
    for way, told in found["tokens"].items():
        if set(told) != set(in_modes) or any(len(tokens) != len(found["windows"]) for tokens in told.values()):
            raise Inconsistent(f"{where} there are not tokens of each of them by {way}, {' and '.join(in_modes)}.")


def _check_seconds(seconds: dict[str, list[float]] | None, there: set[str], repetitions: int | None, what: str) -> None:
    """A positive number for each repetition of all that there is; None where nothing is timed."""
    if repetitions is None:
        if seconds is not None:
            raise Inconsistent(f"{what} has seconds of windows, where nothing is timed.")
    elif seconds is None or set(seconds) != there:
        raise Inconsistent(f"{what} does not have seconds of windows for {', '.join(sorted(there))}.")
    elif not all(len(taken) == repetitions and all(second > 0 for second in taken) for taken in seconds.values()):
        raise Inconsistent(f"{what} does not have {repetitions} repetitions of windows for each of them.")
