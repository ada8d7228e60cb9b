"""Requires: everything that a run makes. Gives: the verdict on it, results/<preset>/audit/."""


rule audit:
    """Verifies the chain from weights to figures by its digests, and derives a sample of the scores anew."""
    input:
        manifests=expand("results/models/{model}/manifest.json", model=MODELS),
        scores=expand("results/models/{model}/scores.csv", model=MODELS),
        norms=norms_of(MODELS),
        runs=expand("results/runs/{run}/done.json", run=trained_runs()),
        collected=expand(f"{OUT}/collected/{{table}}.csv", table=COLLECTED),
        further=further_links(),
        figures=figure_targets(),
        tables=table_targets(),
    output:
        multiext(f"{OUT}/audit/audit", ".md", ".json"),
    log:
        f"{OUT}/logs/audit/audit.log",
    benchmark:
        f"{OUT}/benchmarks/audit/audit.tsv"
    conda:
        CONDA
    threads: SETTINGS.threads
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        preset=subpath(output[0], ancestor=2),
        rendered=rendered_arguments(),
        code=code_digest("verbs.audit"),
    shell:
        "python -m qkgeom audit {params.preset} {params.rendered} --record --threads {threads} > {log} 2>&1"
