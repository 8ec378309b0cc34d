# Each candidate, built and held against the reference in a fresh process.


rule build:
    input:
        model="<model>/model.json",
        environment="<environment>/environment.json",
        protocol="<key>/protocol.json",
        reference="<key>/reference.json",
    output:
        "<key>/candidates/{candidate}/plan.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/candidates/{candidate}/build.log",
    threads: 1
    resources:
        gpu=1,
    params:
        folder=subpath(output[0], ancestor=3),
        code=planner.code("build"),
    message:
        "Building {wildcards.candidate}"
    shell:
        "exec python -m exactgraph build {params.folder} --candidate {wildcards.candidate} --code {params.code} >{log} 2>&1"


rule validate:
    input:
        model="<model>/model.json",
        environment="<environment>/environment.json",
        protocol="<key>/protocol.json",
        reference="<key>/reference.json",
        plan="<key>/candidates/{candidate}/plan.json",
    output:
        "<key>/candidates/{candidate}/validation.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/candidates/{candidate}/validate.log",
    threads: 1
    resources:
        gpu=1,
    params:
        folder=subpath(output[0], ancestor=3),
        code=planner.code("validate"),
    message:
        "Validating {wildcards.candidate}"
    shell:
        "exec python -m exactgraph validate {params.folder} --candidate {wildcards.candidate} --code {params.code} >{log} 2>&1"


# It names the manifest because only direct consumers of a checkpoint are spared when the bytes stayed the same.
# A checkpoint itself, asked by nobody: the confirmation runs again only when the bytes of order.json differ.
checkpoint rank:
    input:
        model="<model>/model.json",
        protocol="<key>/protocol.json",
        reference="<key>/reference.json",
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
    output:
        ranking="<key>/ranking.json",
        order="<key>/order.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/rank.log",
    threads: 1
    params:
        folder=subpath(output.ranking, parent=True),
        candidates=",".join(config["candidates"]),
        code=planner.code("rank"),
    message:
        "Ranking the candidates for {wildcards.model}"
    shell:
        "exec python -m exactgraph rank {params.folder} --candidates {params.candidates:q} --code {params.code} >{log} 2>&1"
