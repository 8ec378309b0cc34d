# The reference: unmodified eager decoding, from fresh processes that must agree.


rule baseline:
    input:
        model="<model>/model.json",
        environment="<environment>/environment.json",
        protocol="<key>/protocol.json",
    output:
        "<key>/baseline/run{run}.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/baseline/run{run}.log",
    threads: 1
    resources:
        **planner.slot_resources,
        gpu=1,
    params:
        folder=subpath(output[0], ancestor=2),
        code=planner.code("baseline"),
    message:
        "Baseline {wildcards.run} of {wildcards.model}"
    shell:
        "exec python -m exactgraph baseline {params.folder} --run {wildcards.run} --out {output} --code {params.code} >{log} 2>&1"


# A checkpoint, asked by nobody: what reads reference.json runs again only when its bytes differ.
checkpoint freeze:
    input:
        model="<model>/model.json",
        environment="<environment>/environment.json",
        protocol="<key>/protocol.json",
        runs=expand(
            "<key>/baseline/run{run}.json", run=planner.runs, allow_missing=True
        ),
    output:
        frozen="<key>/frozen.json",
        reference="<key>/reference.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/freeze.log",
    threads: max(planner.runs)
    resources:
        **planner.slot_resources,
        gpu=1,
    params:
        folder=subpath(output.frozen, parent=True),
        code=planner.code("freeze"),
    message:
        "Freezing the baseline of {wildcards.model}"
    shell:
        "exec python -m exactgraph freeze {params.folder} --jobs {threads} --code {params.code} >{log} 2>&1"
