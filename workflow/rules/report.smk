"""Requires: a preset's figures, tables, collected scores and artifacts. Gives: one page with all of them."""


rule report:
    """Writes the whole run as one HTML page: figures, tables, the models behind them, and what is missing."""
    input:
        manifests=expand("results/models/{model}/manifest.json", model=MODELS),
        scores=expand("results/models/{model}/scores.csv", model=MODELS),
        collected=f"{OUT}/collected/summary.csv",
        figures=figure_targets(),
        tables=table_targets(),
        audit=rules.audit.output,
    output:
        f"{OUT}/report.html",
    log:
        f"{OUT}/logs/report/report.log",
    benchmark:
        f"{OUT}/benchmarks/report/report.tsv"
    conda:
        CONDA
    threads: 1
    resources:
        mem_mb=1500,
        runtime=10,
    params:
        folder=subpath(output[0], parent=True),
        models=[word for name in MODELS for word in ("--model", f"results/models/{name}")],
        rendered=rendered_arguments(),
        knobs=report_knobs(),
        code=code_digest("verbs.report"),
    shell:
        "python -m qkgeom report {params.folder} {params.models} {params.rendered} {params.knobs}"
        " --output {output} > {log} 2>&1"
