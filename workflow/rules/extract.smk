"""Requires: a row of models.tsv. Gives: results/models/<model>/manifest.json, with the weights beside it."""


rule extract:
    """Fetches a model and stores its query and key weights."""
    input:
        extract_inputs,
    output:
        manifest="results/models/{model}/manifest.json",
    log:
        f"{OUT}/logs/extract/{{model}}.log",
    benchmark:
        f"{OUT}/benchmarks/extract/{{model}}.tsv"
    retries: RETRIES
    localrule: SETTINGS.download_here
    conda:
        CONDA
    threads: 1
    resources:
        **sized(extract_need, "mem_mb", "runtime", "disk_mb"),
        hub_slots=lambda wildcards: int(wildcards.model not in TRAINED),
        record=recorded_faults,
    params:
        folder=subpath(output.manifest, parent=True),
        arguments=extract_arguments,
        files=extract_files,
        code=extract_code,
    shell:
        "python -m qkgeom extract {params.arguments} --model {wildcards.model} --output {params.folder}"
        " --record {resources.record} > {log} 2>&1"
