"""Requires: artifacts in results/models/. Gives: their scores, collected and summarised."""


rule score:
    """Scores every layer of a published model, on a GPU where there is one."""
    input:
        "results/models/{model}/manifest.json",
    output:
        update("results/models/{model}/scores.csv"),  # so that scores are there until others are
    log:
        f"{OUT}/logs/score/{{model}}.log",
    benchmark:
        f"{OUT}/benchmarks/score/{{model}}.tsv"
    wildcard_constraints:
        model="|".join(map(re.escape, PUBLISHED)),
    priority: 1  # before further downloads, so that weights that are not kept go soon
    retries: RETRIES
    conda:
        CONDA
    threads: SETTINGS.threads
    resources:
        mem_mb=4000,
        runtime=60,
        gpu=GPU,
        device=SETTINGS.device,  # not a param: another device gives the same scores
        record=recorded_faults,
        weights=lambda wildcards: weights_after_scoring([wildcards.model]),  # not a param either
        hub_slots=score_downloads,
    params:
        columns=score_columns(),
        code=score_code(),
    shell:
        "python -m qkgeom score results/models/{wildcards.model} --in-place --record {resources.record} {params.columns}"
        " --device {resources.device} --threads {threads} --{resources.weights}-weights > {log} 2>&1"


for number, models_of_job in enumerate(scoring_jobs()):

    rule:
        """Scores models trained here, small ones together."""
        name:
            f"score_{number}"
        input:
            expand("results/models/{model}/manifest.json", model=models_of_job),
        output:
            expand("results/models/{model}/scores.csv", model=models_of_job),
        log:
            f"{OUT}/logs/score/{models_of_job[0]}.log",
        benchmark:
            f"{OUT}/benchmarks/score/{models_of_job[0]}.tsv"
        conda:
            CONDA
        threads: SETTINGS.threads
        resources:
            mem_mb=4000,
            runtime=60,
            gpu=GPU,
            device=SETTINGS.device,
            weights=weights_after_scoring(models_of_job),
        params:
            artifacts=expand("results/models/{model}", model=models_of_job),
            columns=score_columns(),
            code=score_code(),
        shell:
            "python -m qkgeom score {params.artifacts} --in-place --record lasting {params.columns} --device {resources.device}"
            " --threads {threads} --{resources.weights}-weights > {log} 2>&1"


rule collect:
    """Puts the scores of all models in one table and summarises them."""
    input:
        scores=expand("results/models/{model}/scores.csv", model=MODELS),
        runs=expand("results/runs/{run}/done.json", run=trained_runs()),
    output:
        expand(f"{OUT}/collected/{{table}}.csv", table=COLLECTED),
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
        code=code_digest("verbs.collect"),
    shell:
        "python -m qkgeom collect {input.scores} {params.runs} --preset {params.preset} --output {params.folder} > {log} 2>&1"


rule check:
    """Names every model that is missing from the figures; the last step of a run."""
    input:
        manifests=expand("results/models/{model}/manifest.json", model=MODELS),
        scores=expand("results/models/{model}/scores.csv", model=MODELS),
        figures=figure_targets(),
        tables=table_targets(),
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
        " --output {params.findings} > {log} 2>&1"
