"""Requires: rows of runs.tsv. Gives: results/runs/<run>/done.json, with snapshots and the loss curves beside it."""


rule corpus:
    """Tokenises the texts that the environment contains."""
    output:
        expand(f"{OUT}/corpora/{{corpus}}/corpus.json", corpus=CORPORA),
    log:
        f"{OUT}/logs/corpus/corpus.log",
    benchmark:
        f"{OUT}/benchmarks/corpus/corpus.tsv"
    conda:
        CONDA
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        folder=subpath(output[0], ancestor=2),
        names=CORPORA,
        sizes=corpus_arguments(),
        code=code_digest("verbs.corpus"),
    shell:
        "python -m qkgeom corpus {params.names} {params.sizes} --output {params.folder} > {log} 2>&1"


for runs_of_job in training_jobs():

    rule:
        """Trains models, one after another, or goes on where a killed job of the same runs stopped."""
        name:
            f"train_{runs_of_job[0]}"
        input:
            train_inputs(runs_of_job),
        output:
            expand("results/runs/{run}/done.json", run=runs_of_job),
        log:
            f"{OUT}/logs/train/{runs_of_job[0]}.log",
        benchmark:
            f"{OUT}/benchmarks/train/{runs_of_job[0]}.tsv"
        conda:
            CONDA
        threads: SETTINGS.threads
        resources:
            mem_mb=3000,
            runtime=600,
            gpu=1 if SETTINGS.device.startswith("cuda") else 0,
            device=SETTINGS.device,
        params:
            runs=runs_of_job,
            corpora=f"{OUT}/corpora",
            plans=train_plans(runs_of_job),
            code=train_code(runs_of_job),
        shell:
            "python -m qkgeom train {params.runs} --corpora {params.corpora} --output results/runs --device {resources.device}"
            " --threads {threads} > {log} 2>&1"
