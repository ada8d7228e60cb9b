# qkgeom: symmetry and directionality of query-key weights, from checkpoints to figures.
#
# Paths
#   results/<preset>/corpora/tokenizer.json         tokenizer
#   results/<preset>/corpora/<corpus>/corpus.json   corpus    (its tokens beside it)
#   results/runs/<model>/done.json                  train     (snapshots, loss curve and state beside it)
#   results/runs/<model>/updates/done.json          updates   (weight updates against the theory; tables beside it)
#   results/models/<model>/manifest.json            extract   (beside it weights, <snapshot>.safetensors, and of the hub's
#                                                             models digests.json, checksums of earlier runs)
#   results/models/<model>/scores.csv               score     (beside it norms.npz, with `structure: true`; unscored.json, if
#                                                             it cannot be scored)
#   results/models/<model>/published_way.csv        published (of models that the paper's released code read otherwise)
#   results/<preset>/collected/*.csv                collect
#   results/<preset>/figures/<figure>.{pdf,png,csv} figure
#   results/<preset>/tables/<table>.{tex,csv,md}    table
#   results/<preset>/report.html                    report    (one page with all of it)
#   results/<preset>/check.{ok,txt}                 check     (.ok if no model is missing; .txt: what was found)
#   results/<preset>/audit/audit.{md,json}          audit     (what was found; `check` ends with an error if something is wrong)
#   <of scores, collected, figures, tables>/[<name>.]provenance.json   how they were made, beside them
#   results/<preset>/{logs,benchmarks}/<rule>/<model, figure or table>
#   results/.{invocations,writing}/                 lock files: one job at a time writes an output
#
# Models are rows of workflow/models.tsv, or of workflow/runs.tsv if they are trained here; figures and tables are files
# of workflow/qkgeom/{figures,tables}/.

from snakemake.utils import min_version

min_version("9.19")


configfile: "config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/theory.smk"
include: "workflow/rules/extract.smk"
include: "workflow/rules/score.smk"
include: "workflow/rules/published.smk"
include: "workflow/rules/render.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/report.smk"


place_jobs()


rule all:
    """Everything of the preset: scores, figures, tables, and the check that names what is missing."""
    default_target: True
    input:
        rules.check.output,
        rules.report.output,
        # what led to it as well: of a file that it is not told of, Snakemake does not notice that it is gone
        expand("results/runs/{run}/done.json", run=trained_runs()),
        rules.check.input,
        rules.collect.output,


rule scores:
    """The scores and their summary, without figures."""
    input:
        rules.collect.output,


rule figures:
    """Every figure of the preset."""
    input:
        figure_targets(),


rule tables:
    """Every table of the preset."""
    input:
        table_targets(),


onstart:
    begin_invocation()
    bring_into_the_present(Path("results"))


onsuccess:
    sys.stderr.write(
        f"\nReport: {OUT}/report.html   audit: {OUT}/audit/audit.md   figures: {OUT}/figures   tables: {OUT}/tables"
        f"   missing: {OUT}/check.txt\n"
    )
