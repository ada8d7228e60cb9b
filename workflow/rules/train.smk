"""Requires: a row of runs.tsv. Gives: results/runs/<model>/done.json, with snapshots and the loss curve beside it."""


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


rule train:
    """Trains one model, or goes on where a killed run of it stopped."""
    input:
        lambda wildcards: f"{OUT}/corpora/{RUNS[wildcards.model].corpus}/corpus.json",
    output:
        "results/runs/{model}/done.json",
    log:
        f"{OUT}/logs/train/{{model}}.log",
    benchmark:
        f"{OUT}/benchmarks/train/{{model}}.tsv"
    conda:
        CONDA
    threads: SETTINGS.threads
    resources:
        mem_mb=3000,
        runtime=600,
        gpu=1 if SETTINGS.device.startswith("cuda") else 0,
        device=SETTINGS.device,
    params:
        folder=subpath(output[0], parent=True),
        corpus=subpath(input[0], parent=True),
        arguments=train_arguments,
        code=code_digest("verbs.train"),
    shell:
        "python -m qkgeom train {params.corpus} {params.arguments} --device {resources.device}"
        " --threads {threads} --output {params.folder} > {log} 2>&1"
