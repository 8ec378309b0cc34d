# What the paths are made of: where jobs run, and what a source stands for today. Only the target asks these checkpoints.


checkpoint probe:
    output:
        "<slot>/probe.json",
    log:
        "<logs>/slots/{slot}/probe.log",
    threads: 1
    resources:
        **planner.slot_resources,
        gpu=1,
    params:
        seen=planner.seen,
        visible=planner.visible,
        code=planner.code("probe"),
    message:
        "Looking at the device and the software of slot {wildcards.slot}"
    shell:
        "exec python -m exactgraph probe --slot {wildcards.slot} --visible {params.visible:q} --out {output}"
        " --code {params.code} >{log} 2>&1"


checkpoint resolve:
    output:
        "<sources>/{model}.json",
    log:
        "<logs>/sources/{model}.log",
    threads: 1
    params:
        spec=planner.spec,
        seen=planner.seen_source,
        code=planner.code("resolve"),
    message:
        "Resolving {params.spec}"
    shell:
        "exec python -m exactgraph resolve {params.spec:q} --out {output} --code {params.code} >{log} 2>&1"
