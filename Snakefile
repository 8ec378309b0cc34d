# Confirms each configured model on each configured slot: snakemake --cores 1 confirm
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

from exactgraph.refusal import UserError
from exactgraph.workflow.config import check_syntax

min_version("9.27.1")

try:
    check_syntax(Path("config.yaml"))
except UserError as error:
    raise WorkflowError(str(error)) from None


configfile: "config.yaml"


include: "workflow/rules/common.smk"


onsuccess:
    shell("exec python -m exactgraph table")


# Every stage's output is asked for, not only the last: a re-run that failed has lost its own, and whoever asked only for
# the receipt would find nothing to do on top of stale results.
rule confirm:
    default_target: True
    input:
        *planner.targets(checkpoints),
    message:
        "Everything that confirms the configured models is there"


include: "workflow/rules/discovery.smk"
include: "workflow/rules/inputs.smk"
include: "workflow/rules/baseline.smk"
include: "workflow/rules/candidates.smk"
include: "workflow/rules/verdict.smk"
include: "workflow/rules/report.smk"
