"""Requires: trained runs that the preset names in `training: updates`. Gives: results/runs/<run>/updates/, their weight updates."""

for number, runs_of_job in enumerate(measuring_jobs(RUNS, SETTINGS)):

    rule:
        """Measures the weight updates of trained runs at their whole snapshots, on the batches that they saw next."""
        name:
            f"updates_{number}"
        input:
            expand("results/runs/{run}/done.json", run=runs_of_job),
            train_inputs(runs_of_job),
        output:
            expand("results/runs/{run}/updates/done.json", run=runs_of_job),
        log:
            f"{OUT}/logs/updates/{runs_of_job[0]}.log",
        benchmark:
            f"{OUT}/benchmarks/updates/{runs_of_job[0]}.tsv"
        conda:
            CONDA
        threads: SETTINGS.threads
        resources:
            **sized(lambda wildcards, runs=runs_of_job: train_need(runs), "mem_mb"),
            runtime=120,
        params:
            arguments=train_arguments(runs_of_job),
            batches=SETTINGS.training["updates"]["batches"],
            code=runs_code("updates", runs_of_job),
        shell:
            "python -m qkgeom updates {params.arguments} --batches {params.batches} --threads {threads} > {log} 2>&1"
