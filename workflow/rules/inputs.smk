# What a key stands for, as files. None of these takes the discovery files as input: probing or resolving again must not
# run again what has the same key.


# A checkpoint so that its consumers run again only when the manifest's bytes differ.
checkpoint download:
    output:
        folder=directory("<model>/model"),
        manifest="<model>/model.json",
    log:
        "<logs>/{model}@{commit}/download.log",
    threads: 1
    params:
        code=planner.code("download"),
    message:
        "Getting {wildcards.model}"
    shell:
        "exec python -m exactgraph download artifacts/sources/{wildcards.model}.json"
        " --out-dir {output.folder} --manifest {output.manifest} --code {params.code} >{log} 2>&1"


# The content of the next two follows from their path, so no edit of code can make them out of date.
rule environment:
    output:
        "<environment>/environment.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/environment.log",
    threads: 1
    params:
        folder=subpath(output[0], parent=True),
    message:
        "Writing down the environment {wildcards.env} of {wildcards.device}"
    shell:
        "exec python -m exactgraph environment {params.folder} --probes artifacts/slots >{log} 2>&1"


rule protocol:
    input:
        "<environment>/environment.json",
    output:
        "<key>/protocol.json",
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/protocol.log",
    threads: 1
    params:
        folder=subpath(output[0], parent=True),
    message:
        "Writing down the protocol {wildcards.protocol}"
    shell:
        "exec python -m exactgraph protocol {params.folder} --config artifacts/config.json >{log} 2>&1"
