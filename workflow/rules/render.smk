"""Requires: collected scores, and the artifacts of the example models. Gives: figures and tables, with their numbers."""


rule figure:
    """Draws one figure; its numbers are in the .csv beside it."""
    input:
        unpack(lambda wildcards: render_inputs(FIGURES[wildcards.figure])),
    output:
        multiext(f"{OUT}/figures/{{figure}}", ".pdf", ".png", ".csv", ".md", ".provenance.json"),
    log:
        f"{OUT}/logs/figure/{{figure}}.log",
    benchmark:
        f"{OUT}/benchmarks/figure/{{figure}}.tsv"
    conda:
        CONDA
    threads: 1
    resources:
        mem_mb=1500,
        runtime=10,
    params:
        stem=subpath(output[0], strip_suffix=".pdf"),
        arguments=lambda wildcards: render_arguments(FIGURES[wildcards.figure]),
        code=lambda wildcards: render_code("figure", wildcards.figure, FIGURES[wildcards.figure]),
    shell:
        "python -m qkgeom figure {wildcards.figure} {params.arguments} --output {params.stem} > {log} 2>&1"


rule table:
    """Prints one table in three formats."""
    input:
        unpack(lambda wildcards: render_inputs(TABLES[wildcards.table])),
    output:
        multiext(f"{OUT}/tables/{{table}}", ".tex", ".csv", ".md", ".provenance.json"),
    log:
        f"{OUT}/logs/table/{{table}}.log",
    benchmark:
        f"{OUT}/benchmarks/table/{{table}}.tsv"
    conda:
        CONDA
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        stem=subpath(output[0], strip_suffix=".tex"),
        arguments=lambda wildcards: render_arguments(TABLES[wildcards.table]),
        code=lambda wildcards: render_code("table", wildcards.table, TABLES[wildcards.table]),
    shell:
        "python -m qkgeom table {wildcards.table} {params.arguments} --output {params.stem} > {log} 2>&1"
