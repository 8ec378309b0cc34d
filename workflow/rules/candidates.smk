# Each candidate, built and held against the reference in a fresh process.


# A checkpoint, asked by nobody: once it is there the builds get their priorities, and only when the bytes of skips.json
# differ do they run again.
checkpoint profile:
    input:
        model="<model>/model.json",
        environment="<environment>/environment.json",
        protocol="<key>/protocol.json",
        reference="<key>/reference.json",
    output:
        profile="<key>/profile.json",
        skips="<key>/skips.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/profile.log",
    threads: 1
    resources:
        **planner.slot_resources,
        gpu=1,
    params:
        folder=subpath(output.profile, parent=True),
        candidates=",".join(config["candidates"]),
        code=planner.code("profile"),
    message:
        "Profiling a decode step of {wildcards.model}"
    shell:
        "exec python -m exactgraph profile {params.folder} --candidates {params.candidates:q} --code {params.code} >{log} 2>&1"


rule build:
    input:
        model="<model>/model.json",
        environment="<environment>/environment.json",
        protocol="<key>/protocol.json",
        reference="<key>/reference.json",
        skips="<key>/skips.json",
    output:
        "<key>/candidates/{candidate}/plan.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/candidates/{candidate}/build.log",
    priority: planner.priority
    threads: 1
    resources:
        **planner.slot_resources,
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
        skips="<key>/skips.json",
        plan="<key>/candidates/{candidate}/plan.json",
    output:
        "<key>/candidates/{candidate}/validation.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/candidates/{candidate}/validate.log",
    priority: planner.priority
    threads: 1
    resources:
        **planner.slot_resources,
        gpu=1,
    params:
        folder=subpath(output[0], ancestor=3),
        code=planner.code("validate"),
    message:
        "Validating {wildcards.candidate}"
    shell:
        "exec python -m exactgraph validate {params.folder} --candidate {wildcards.candidate} --code {params.code} >{log} 2>&1"


# It names manifest and skips because only direct consumers of a checkpoint are spared when the bytes stayed the same.
# A checkpoint itself, asked by nobody: the confirmation runs again only when the bytes of order.json differ.
checkpoint rank:
    input:
        model="<model>/model.json",
        protocol="<key>/protocol.json",
        reference="<key>/reference.json",
        skips="<key>/skips.json",
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
