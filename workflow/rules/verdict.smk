# The repetition that counts, and the evidence.


rule confirmation:
    input:
        model="<model>/model.json",
        environment="<environment>/environment.json",
        protocol="<key>/protocol.json",
        reference="<key>/reference.json",
        skips="<key>/skips.json",
        order="<key>/order.json",
    output:
        "<key>/confirmation.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/confirm.log",
    threads: 2
    resources:
        **planner.slot_resources,
        gpu=1,
    params:
        folder=subpath(output[0], parent=True),
        code=planner.code("confirm"),
    message:
        "Confirming {wildcards.model} in fresh processes"
    shell:
        "exec python -m exactgraph confirm {params.folder} --jobs {threads} --code {params.code} >{log} 2>&1"


rule receipt:
    input:
        model="<model>/model.json",
        environment="<environment>/environment.json",
        protocol="<key>/protocol.json",
        runs=expand(
            "<key>/baseline/run{run}.json", run=planner.runs, allow_missing=True
        ),
        frozen="<key>/frozen.json",
        profile="<key>/profile.json",
        plans=expand(
            "<key>/candidates/{candidate}/plan.json",
            candidate=planner.candidates,
            allow_missing=True,
        ),
        validations=expand(
            "<key>/candidates/{candidate}/validation.json",
            candidate=planner.candidates,
            allow_missing=True,
        ),
        ranking="<key>/ranking.json",
        confirmation="<key>/confirmation.json",
    output:
        "<key>/receipt.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/receipt.log",
    threads: 1
    params:
        folder=subpath(output[0], parent=True),
        code=planner.code("receipt"),
    message:
        "Writing the receipt of {wildcards.model}"
    shell:
        "exec python -m exactgraph receipt {params.folder} --code {params.code} >{log} 2>&1"
