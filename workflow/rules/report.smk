# The receipt as pages for people. Nothing depends on them, so an edit of the report runs this and no more.
# It names the manifest because only direct consumers of a checkpoint are spared when the bytes stayed the same.


rule report:
    input:
        model="<model>/model.json",
        receipt="<key>/receipt.json",
    output:
        text="<key>/report/report.md",
        page=report(
            "<key>/report/report.html",
            caption="../report/report.rst",
            category="Receipts",
            labels={
                "model": "{model}",
                "device": "{device}",
                "environment": "{env}",
                "protocol": "{protocol}",
            },
        ),
    log:
        "<logs>/{model}@{commit}/{device}/{env}/{protocol}/report.log",
    threads: 1
    params:
        folder=subpath(output.page, parent=True),
        code=planner.code("report"),
    message:
        "Writing the report on {wildcards.model}"
    shell:
        "exec python -m exactgraph report {input.receipt} --out-dir {params.folder} --code {params.code} >{log} 2>&1"
