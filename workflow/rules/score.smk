"""Requires: artifacts in results/models/. Gives: their scores, collected and summarised."""


rule score:
    """Scores every layer of a published model, on a GPU where there is one."""
    input:
        "results/models/{model}/manifest.json",
        published_way_first,
    output:
        update("results/models/{model}/scores.csv"),  # so that scores are there until others are
        update("results/models/{model}/scores.provenance.json"),
        update(norms_of(["{model}"])),
    log:
        f"{OUT}/logs/score/{{model}}.log",
    benchmark:
        f"{OUT}/benchmarks/score/{{model}}.tsv"
    wildcard_constraints:
        model="|".join(map(re.escape, ALONE)),
    priority: 1  # before further downloads, so that weights that are not kept go soon
    retries: RETRIES
    conda:
        CONDA
    threads: SETTINGS.threads
    resources:
        **sized(lambda wildcards: score_need([wildcards.model]), "mem_mb", "runtime", "disk_mb", "gpu_mem_mb"),
        gpu=GPU,
        device=SETTINGS.device,  # not a param: another device gives the same scores
        record=recorded_faults,
        weights=lambda wildcards: weights_after_scoring([wildcards.model]),  # not a param either
        hub_slots=lambda wildcards: score_downloads([wildcards.model]),
    params:
        columns=score_columns(),
        code=code_of("score"),
    shell:
        "python -m qkgeom score results/models/{wildcards.model} --in-place --record {resources.record} {params.columns}"
        " --device {resources.device} --threads {threads} --{resources.weights}-weights > {log} 2>&1"


for number, models_of_job in enumerate(trained_scoring_jobs(RUNS, SETTINGS) + SHARED):

    rule:
        """Scores models in one job: those of a training job, or small published ones; starting PyTorch takes about as long."""
        name:
            f"score_{number}"
        input:
            expand("results/models/{model}/manifest.json", model=models_of_job),
        output:
            update(expand("results/models/{model}/scores.csv", model=models_of_job)),
            update(expand("results/models/{model}/scores.provenance.json", model=models_of_job)),
            update(norms_of(models_of_job)),
        log:
            f"{OUT}/logs/score/{models_of_job[0]}.log",
        benchmark:
            f"{OUT}/benchmarks/score/{models_of_job[0]}.tsv"
        priority: 1
        retries: RETRIES
        conda:
            CONDA
        threads: SETTINGS.threads
        resources:
            **sized(lambda wildcards, models=models_of_job: score_need(models), "mem_mb", "runtime", "disk_mb", "gpu_mem_mb"),
            gpu=GPU,
            device=SETTINGS.device,
            record=recorded_faults,
            weights=weights_after_scoring(models_of_job),
            hub_slots=lambda wildcards, models=models_of_job: score_downloads(models),
        params:
            artifacts=expand("results/models/{model}", model=models_of_job),
            columns=score_columns(),
            code=code_of("score"),
        shell:
            "python -m qkgeom score {params.artifacts} --in-place --record {resources.record} {params.columns}"
            " --device {resources.device} --threads {threads} --{resources.weights}-weights > {log} 2>&1"


rule collect:
    """Puts the scores of all models in one table and summarises them."""
    input:
        scores=expand("results/models/{model}/scores.csv", model=MODELS),
        runs=expand("results/runs/{run}/done.json", run=trained_runs()),
    output:
        expand(f"{OUT}/collected/{{table}}.csv", table=COLLECTED),
        f"{OUT}/collected/provenance.json",
    log:
        f"{OUT}/logs/collect/collect.log",
    benchmark:
        f"{OUT}/benchmarks/collect/collect.tsv"
    conda:
        CONDA
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        folder=subpath(output[0], parent=True),
        runs=collect_runs(),
        preset=SETTINGS.preset,
        rows=collect_rows,
        code=code_of("collect"),
    shell:
        "python -m qkgeom collect {input.scores} {params.runs} --preset {params.preset} --output {params.folder} > {log} 2>&1"


rule check:
    """Names every model that is missing from the figures; the last step of a run."""
    input:
        manifests=expand("results/models/{model}/manifest.json", model=MODELS),
        scores=expand("results/models/{model}/scores.csv", model=MODELS),
        norms=norms_of(MODELS),
        figures=figure_targets(),
        tables=table_targets(),
        audit=f"{OUT}/audit/audit.json",
    output:
        touch(f"{OUT}/check.ok"),
    log:
        f"{OUT}/logs/check/check.log",
    benchmark:
        f"{OUT}/benchmarks/check/check.tsv"
    conda:
        CONDA
    threads: 1
    resources:
        mem_mb=500,
        runtime=10,
    params:
        findings=f"{OUT}/check.txt",  # no output, which Snakemake would delete when the check fails
        folders=expand("results/models/{model}", model=MODELS),
        rendered=rendered_arguments(),
        allow_missing="--allow-missing" if SETTINGS.allow_missing else "--no-allow-missing",
        code=code_digest("verbs.check"),
    shell:
        "python -m qkgeom check {params.folders} {params.allow_missing} {params.rendered}"
        " --audit {input.audit} --output {params.findings} > {log} 2>&1"
