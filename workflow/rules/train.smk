"""Requires: rows of runs.tsv. Gives: results/runs/<run>/done.json, with snapshots and the loss curves beside it."""


rule tokenizer:
    """Trains the tokenizer that the preset's corpora share, or fetches it."""
    output:
        f"{OUT}/corpora/tokenizer.json",
    log:
        f"{OUT}/logs/tokenizer/tokenizer.log",
    benchmark:
        f"{OUT}/benchmarks/tokenizer/tokenizer.tsv"
    localrule: SETTINGS.download_here
    conda:
        CONDA
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
        hub_slots=1 if "tokenizer" in SETTINGS.training.get("corpora", {}) else 0,
    params:
        arguments=tokenizer_arguments,
        code=code_digest("verbs.tokenizer"),
    shell:
        "python -m qkgeom tokenizer {params.arguments} --output {output} > {log} 2>&1"


rule corpus:
    """Tokenises one corpus."""
    input:
        rules.tokenizer.output,
    output:
        f"{OUT}/corpora/{{corpus}}/corpus.json",
    log:
        f"{OUT}/logs/corpus/{{corpus}}.log",
    benchmark:
        f"{OUT}/benchmarks/corpus/{{corpus}}.tsv"
    localrule: SETTINGS.download_here
    conda:
        CONDA
    threads: SETTINGS.threads
    resources:
        **sized(corpus_need, "mem_mb", "runtime", "disk_mb"),
        hub_slots=lambda wildcards: int(streamed(wildcards)),
    params:
        folder=subpath(output[0], parent=True),
        arguments=corpus_arguments,
        files=corpus_files,
        code=corpus_code,
    shell:
        "python -m qkgeom corpus {wildcards.corpus} --tokenizer {input} {params.arguments}"
        " --threads {threads} --output {params.folder} > {log} 2>&1"


for number, runs_of_job in enumerate(TRAINING):

    rule:
        """Trains models, one after another, or goes on where a killed job of the same runs stopped."""
        name:
            f"train_{number}"
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
        threads: SETTINGS.threads * max(RUN_GPUS // RUN_NODES, 1)
        resources:
            **train_across(),
            **sized(lambda wildcards, runs=runs_of_job: train_need(runs), "mem_mb", "runtime", "disk_mb", "gpu_mem_mb"),
            gpu=RUN_GPUS,
            nodes=RUN_NODES,
            processes=max(RUN_GPUS, 1),
            device=SETTINGS.device,
        params:
            arguments=train_arguments(runs_of_job),
            plans=train_plans(runs_of_job),
            code=runs_code("train", runs_of_job),
        # SLURM signals all processes of a job; an older bash would end, and the job with it, unsaved.
        shell:
            "trap : TERM; "
            "python -m qkgeom train {params.arguments} --device {resources.device} --threads {threads}"
            " --processes {resources.processes} --nodes {resources.nodes} > {log} 2>&1"
