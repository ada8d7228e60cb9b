"""Requires: artifacts. Gives: their scores as the paper's released code would have read the weights, to compare with."""

for number, models_of_job in enumerate(published_way_jobs(MODELS, SETTINGS)):

    rule:
        """Scores models in the published way to read weights, where that differs from the right one."""
        name:
            f"published_{number}"
        input:
            expand("results/models/{model}/manifest.json", model=models_of_job),
        output:
            expand("results/models/{model}/published_way{end}", model=models_of_job, end=[".csv", ".provenance.json"]),
        log:
            f"{OUT}/logs/published/{models_of_job[0]}.log",
        benchmark:
            f"{OUT}/benchmarks/published/{models_of_job[0]}.tsv"
        priority: 2  # before scoring, after which weights may be dropped
        retries: RETRIES
        conda:
            CONDA
        threads: SETTINGS.threads
        resources:
            **sized(lambda wildcards, models=models_of_job: score_need(models), "mem_mb", "runtime", "gpu_mem_mb"),
            gpu=GPU,
            device=SETTINGS.device,  # not a param: another device gives the same scores
            record=recorded_faults,
            hub_slots=lambda wildcards, models=models_of_job: published_downloads(models),
        params:
            artifacts=expand("results/models/{model}", model=models_of_job),
            code=published_code(models_of_job),
        shell:
            "python -m qkgeom published {params.artifacts} --in-place --record {resources.record}"
            " --device {resources.device} --threads {threads} > {log} 2>&1"
