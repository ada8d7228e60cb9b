"""Requires: an artifact. Gives: its scores as the paper's released code would have read its weights, to compare with."""


rule published:
    """Scores a model in the published way to read weights, where that differs from the right one."""
    input:
        "results/models/{model}/manifest.json",
    output:
        multiext("results/models/{model}/published_way", ".csv", ".provenance.json"),
    log:
        f"{OUT}/logs/published/{{model}}.log",
    benchmark:
        f"{OUT}/benchmarks/published/{{model}}.tsv"
    priority: 2  # before scoring, after which weights may be dropped
    retries: RETRIES
    conda:
        CONDA
    threads: SETTINGS.threads
    resources:
        mem_mb=sized(lambda wildcards: score_need([wildcards.model]), "mem_mb"),
        runtime=sized(lambda wildcards: score_need([wildcards.model]), "runtime"),
        gpu_mem_mb=sized(lambda wildcards: score_need([wildcards.model]), "gpu_mem_mb"),
        gpu=GPU,
        device=SETTINGS.device,  # not a param: another device gives the same scores
        record=recorded_faults,
        hub_slots=published_downloads,
    params:
        code=published_code,
    shell:
        "python -m qkgeom published results/models/{wildcards.model} --output {output[0]} --record {resources.record}"
        " --device {resources.device} --threads {threads} > {log} 2>&1"
