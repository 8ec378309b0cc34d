# Configuration, path patterns and the planner that the rules ask. Input functions live in src/exactgraph/workflow.
from jsonschema import ValidationError
from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

from exactgraph.refusal import UserError
from exactgraph.workflow import config as settings
from exactgraph.workflow import keys
from exactgraph.workflow.planner import Planner, shell_prefix

try:
    validate(config, "../schemas/config.schema.yaml")
    planner = Planner(config, workflow)
except WorkflowError as error:
    if not isinstance(error.__context__, ValidationError):
        raise
    wrong = error.__context__
    raise WorkflowError(
        f"Configuration, {settings.place(wrong.absolute_path)}: {wrong.message}"
    ) from None
except UserError as error:
    raise WorkflowError(str(error)) from None

shell.prefix(shell_prefix())


pathvars:
    slot="artifacts/slots/{slot}",
    sources="artifacts/sources",
    model=keys.MODEL_PATTERN,
    environment=keys.ENVIRONMENT_PATTERN,
    key=keys.KEY_PATTERN,


# What uses no GPU runs where Snakemake runs, so that no node of a cluster has to reach a network.
localrules:
    resolve,
    download,
    environment,
    protocol,
    rank,
    receipt,
    report,


# Stages run with the interpreter that runs Snakemake. The image says which system that was tried on.
container: "docker://python:3.11-slim-bookworm"


wildcard_constraints:
    **keys.CONSTRAINTS,
