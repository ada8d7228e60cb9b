"""Requires: everything that a run makes. Gives: the verdict on it, results/<preset>/audit/."""


rule audit:
    """Verifies the chain from weights to figures by its digests, and derives a sample of the scores anew."""
    input:
        rules.check.input,
        rules.collect.output,
        expand("results/runs/{run}/done.json", run=trained_runs()),
    output:
        touch(f"{OUT}/audit/audit.ok"),
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
        preset=OUT,
        page=f"{OUT}/audit",  # no output, which Snakemake would delete when something does not match
        rendered=rendered_arguments(),
        code=code_digest("verbs.audit"),
    shell:
        "python -m qkgeom audit {params.preset} {params.rendered} --output {params.page} --threads {threads} > {log} 2>&1"
