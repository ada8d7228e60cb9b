"""The audit finds, and names, what was changed; of an untouched run it finds nothing."""

from __future__ import annotations

import csv
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from audited import FIGURES, MODELS, RUN, TABLES, audited, inside, make_results, remake
from project import ROOT, qkgeom
from qkgeom.audit import plain
from qkgeom.audit.bundle import Bundle, opened_bundle
from qkgeom.audit.findings import IN_PART, MISMATCH, VERIFIED
from qkgeom.audit.links import Digests
from qkgeom.audit.model import check_model
from qkgeom.audit.options import Options
from qkgeom.digests import PACKAGE, _reach
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.files import sha256_of, write_json
from qkgeom.provenance import OF_FOLDER, beside, read_record
from qkgeom.scores import score_layer
from qkgeom.verbs import figure


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited") / "it's a project"
    make_results(folder)
    return folder


@pytest.fixture
def project(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


def verdicts(audit):
    return {(part.kind, part.name): part.verdict for part in audit.parts}


def found(project, **options):
    """Where the findings are, and the whole text of each."""
    audit = audited(project, **options)
    assert all(finding.found and finding.expected and finding.fix for finding in audit.findings)
    return {finding.where.removeprefix("results/") for finding in audit.findings}, "\n".join(map(str, audit.findings))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def forge(record: Path, part: str, file: Path) -> None:
    """Puts the present digest of a file into a record, as somebody would who wants to hide a change."""
    content = json.loads(record.read_text())
    (name,) = (each for each in content[part] if (record.parent / each).resolve() == file.resolve())
    content[part][name] = sha256_of(file)
    write_json(record, content)


def change_digit(path: Path, number: int, column: str, place: int = 4) -> tuple[str, str]:
    """Changes one digit of the first number from line `number` on, the `place`th after its point; gives it before and after."""
    with path.open(newline="") as file:
        lines = list(csv.reader(file))
    number = next(n for n in range(number, len(lines)) if "." in lines[n][lines[0].index(column)])
    cell = lines[number][lines[0].index(column)]
    at = cell.index(".") + place
    changed = cell[:at] + str((int(cell[at]) + 5) % 10) + cell[at + 1 :]
    lines[number][lines[0].index(column)] = changed
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
    return cell, changed


# nothing is wrong


@pytest.mark.parametrize("options", [{}, {"sample": None}, {"sample": 1, "from_source": True}], ids=["sample", "all", "source"])
def test_an_untouched_run_is_verified(made, options):
    audit = audited(made, **options)
    assert audit.findings == [] and audit.verdict == VERIFIED
    wanted = {("collected", "mini"), ("run", RUN), *(("model", name) for name in MODELS)}
    wanted |= {("figure", name) for name in FIGURES} | {("table", name) for name in TABLES}
    assert verdicts(audit) == dict.fromkeys(wanted, VERIFIED)
    of_model = {part.name: part for part in audit.parts if part.kind == "model"}
    n_layers = {name: len(list(csv.DictReader((made / f"results/models/{name}/scores.csv").open()))) for name in MODELS}
    for name, part in of_model.items():
        if options.get("sample", 2) is None:
            assert part.counts["scores derived anew"] == n_layers[name]
        if "from_source" in options:
            assert part.counts["layers derived from the source"] == {"enc": 3, "dec": 3, RUN: 2}[name]
            assert part.largest["W_qk from the source"] < 1e-6
    assert of_model[RUN].counts["ranges of checkpoints"] == 8


def test_the_records_say_how_everything_was_made(made):
    results = made / "results"
    score = read_record(beside(results / "models/enc/scores.csv"))
    assert (score.step, score.device, score.threads) == ("score", "cpu", 1)
    assert score.inputs == {"manifest.json": sha256_of(results / "models/enc/manifest.json")}
    assert score.outputs == {"scores.csv": sha256_of(results / "models/enc/scores.csv")}
    assert score.parameters == {"heads": True, "structure": False, "precision": "auto"}
    assert {"qkgeom", "python", "numpy", "torch"} <= set(score.versions) and len(score.code) == 16
    collected = read_record(results / "mini/collected" / OF_FOLDER)
    assert [name for name in collected.inputs if name.endswith("scores.csv")] == [
        f"../../models/{m}/scores.csv" for m in MODELS
    ]
    drawn = read_record(results / "mini/figures/wqk_examples.provenance.json")
    assert drawn.inputs.keys() == {"../../models/enc/manifest.json", "../../models/dec/manifest.json"}
    assert drawn.outputs.keys() == {f"wqk_examples.{ending}" for ending in ("csv", "md", "pdf", "png")}
    trained = read_record(results / "runs" / RUN / OF_FOLDER)
    assert trained.seed == 0 and "snapshots/0000400/model.safetensors" in trained.outputs
    for path in made.rglob("*provenance.json"):
        assert str(made) not in path.read_text() and "202" not in json.loads(path.read_text())["versions"].get("date", "")


def test_the_same_steps_write_the_same_records(made, project):
    with inside(project):
        remake(Path("results"), Path("models.tsv"))
    for path in made.rglob("*provenance.json"):
        assert (project / path.relative_to(made)).read_bytes() == path.read_bytes()


def test_the_plain_way_shares_no_code_with_the_scores():
    reached = {path.relative_to(PACKAGE).as_posix() for path in _reach(PACKAGE, "audit.plain")}
    assert reached == {"audit/plain.py"}
    for module in ("audit.probe", "audit.classes", "audit.rows"):
        names = {path.relative_to(PACKAGE).as_posix() for path in _reach(PACKAGE, module)}
        assert not [name for name in names if name.startswith("layouts/") or name in ("scores.py", "products.py", "engine.py")]


@pytest.mark.parametrize("d", [5, 24, 700], ids=["tiny", "small", "several tiles"])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_plain_scores_are_those_of_the_matrix_multiplied_out(d, groups):
    rng = np.random.default_rng(d)
    W_q, W_k = rng.standard_normal((d, 4, 3)), rng.standard_normal((d, 4 // groups, 3))
    W_q[1] *= 5
    M = sum(W_q[:, h] @ W_k[:, h // groups].T for h in range(4))
    scores = plain.score(plain.Factor(W_q), plain.Factor(W_k))
    S, N = (M + M.T) / 2, (M - M.T) / 2
    assert scores.symmetry == pytest.approx(((S**2).sum() - (N**2).sum()) / (M**2).sum(), abs=1e-12)
    assert scores.fro_norm == pytest.approx(np.linalg.norm(M), rel=1e-12)
    sums, excess = [], []
    for norms in (np.linalg.norm(M, axis=1), np.linalg.norm(M, axis=0)):
        threshold = norms.mean() + 2 * norms.std(ddof=1)
        sums.append(norms[norms > threshold].sum())
        excess.append((norms[norms > threshold] - threshold).sum())
    if d > 5:
        assert scores.directionality == pytest.approx((sums[0] - sums[1]) / (sums[0] + sums[1]), abs=1e-12)
        assert scores.directionality_excess == pytest.approx((excess[0] - excess[1]) / (excess[0] + excess[1]), abs=1e-12)
    else:
        assert scores.status == "no_outliers"


@pytest.mark.parametrize(("d", "d_head"), [(64, 16), (640, 160), (1024, 32)])
def test_heads_that_cancel_have_no_score_here_nor_there(d, d_head):
    """What is left of M is rounding, which differs between the two."""
    rng = np.random.default_rng(d)
    W_q, W_k = (rng.standard_normal((d, 2, d_head)).astype(np.float32) for _ in "qk")
    W_q, W_k = np.concatenate([W_q, W_q], 1), np.concatenate([W_k, -W_k], 1)
    found, theirs = plain.score(plain.Factor(W_q), plain.Factor(W_k)), score_layer(*map(torch.tensor, (W_q, W_k)))["all"]
    assert (
        (found.status, found.fro_norm, found.symmetry) == (theirs.status, theirs.fro_norm, theirs.symmetry) == ("zero", 0, None)
    )
    W_k[0, 0, 0] += 1e-3  # one weight more, and they do not
    found, theirs = plain.score(plain.Factor(W_q), plain.Factor(W_k)), score_layer(*map(torch.tensor, (W_q, W_k)))["all"]
    assert found.status == theirs.status == "ok" and found.symmetry == pytest.approx(theirs.symmetry, abs=1e-5)


@pytest.mark.parametrize("row", [0, 600])
def test_a_matrix_that_is_not_finite_in_any_tile(row):
    W = np.random.default_rng(0).standard_normal((700, 2, 3))
    W[row, 0, 0] = np.nan
    good = plain.Factor(np.ones((700, 2, 3)))
    assert plain.score(plain.Factor(W), good).status == plain.score(good, plain.Factor(W)).status == "not_finite"


def test_the_number_by_hand_in_the_documentation(made, capsys):
    text = (
        (ROOT / "docs/audit.md").read_text().partition("with nothing of this project:\n\n")[2].partition("\n\n`sha256sum`")[0]
    )
    code = "\n".join(line.removeprefix("    ") for line in text.splitlines())
    code = code.replace("all-minilm-l6-v2", "enc").replace("[3]", "[2]").replace("layer.003", "layer.002")
    with inside(made):
        exec(code, {})
    rows = csv.DictReader((made / "results/models/enc/scores.csv").open(newline=""))
    (row,) = (row for row in rows if (row["layer"], row["head"]) == ("2", "all"))
    assert float(capsys.readouterr().out) == pytest.approx(float(row["symmetry"]), abs=1e-5)


# something is wrong


@pytest.mark.parametrize("name", ["enc/final.safetensors", f"{RUN}/400.safetensors"])
def test_one_byte_of_an_artifact(project, name):
    path = project / "results/models" / name
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    where, text = found(project)
    assert where == {f"models/{name}"}
    assert "tensor layer.00" in text and "W_k: " not in text.splitlines()[0] and "sha256" in text


def test_every_byte_of_a_header_counts(project):
    path = project / "results/models/enc/final.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    for place in [0, 8, *range(12, 8 + length, 97), 7 + length]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        part, _ = check_model("enc", Options(project / "results", sample=1), Digests())
        assert {finding.where for finding in part.findings} == {path.as_posix()}, (place, whole[place : place + 1])


@pytest.mark.parametrize("column", ["symmetry", "directionality", "directionality_excess", "fro_norm"])
def test_one_digit_of_a_scores_file(project, column):
    path = project / "results/models/dec/scores.csv"
    before, after = change_digit(path, 2, column)
    where, text = found(project)
    assert where >= {"models/dec/scores.csv"} and "sha256" in text
    # and by whoever makes the digests fit, by deriving it anew
    forge(beside(path), "outputs", path)
    where, text = found(project, sample=3)
    assert f", {column}\n  found:    {after}" in text and f"expected: {before[:5]}" in text


@pytest.mark.parametrize("forged", ["nothing", "its record", "both records"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_digit_of_the_scores_is_found_whatever_the_sample(project, forged, layer):
    path, collected = project / "results/models/dec/scores.csv", project / "results/mini/collected" / OF_FOLDER
    number = next(n for n, line in enumerate(path.read_text().splitlines()) if line.startswith(f"dec,final,{layer},all"))
    before, after = change_digit(path, number, "symmetry", place=1)
    for record, part in {"nothing": [], "its record": [(beside(path), "outputs")]}.get(
        forged, [(beside(path), "outputs"), (collected, "inputs")]
    ):
        forge(record, part, path)
    audit = audited(project, sample=1)
    assert {finding.where for finding in audit.findings} == {"results/models/dec/scores.csv"}, "the root, and nothing after it"
    (cell,) = (finding for finding in audit.findings if finding.item)
    assert cell.item == f"snapshot final, layer {layer}, head all, symmetry" and cell.found == after
    assert float(cell.expected.split(",")[0]) == pytest.approx(float(before), abs=1e-5)
    (part,) = (part for part in audit.parts if part.kind == "collected")
    assert part.verdict == MISMATCH and "results/models/dec/scores.csv" in part.follows


def test_a_digit_of_the_collected_scores_is_blamed_on_them(project):
    path = project / "results/mini/collected/scores.csv"
    before, after = change_digit(path, 1, "symmetry", place=1)
    where, text = found(project)
    assert where == {"mini/collected/scores.csv"}
    assert f"column symmetry\n  found:    {after}\n  expected: {before}" in text and "as the weights say" in text
    forge(path.with_name(OF_FOLDER), "outputs", path)
    where, text = found(project)
    assert "mini/collected/scores.csv" in where and not [name for name in where if name.startswith("models/")]


def test_a_disputed_score_without_weights(project):
    (project / "results/models/dec/final.safetensors").unlink()
    path = project / "results/models/dec/scores.csv"
    change_digit(path, 1, "symmetry", place=1)
    forge(beside(path), "outputs", path)
    forge(project / "results/mini/collected" / OF_FOLDER, "inputs", path)
    _, text = found(project)
    assert "one of the two files is wrong" in text and "collected/scores.csv has it" in text


def test_a_figure_that_the_last_audit_had(project):
    assert qkgeom("audit", "results/mini", cwd=project).returncode == 0
    for path in (project / "results/mini/figures").glob("scores_language.*"):
        path.unlink()
    for _ in range(2):  # and it stays missing
        gone = qkgeom("audit", "results/mini", cwd=project)
        assert gone.returncode == 1 and "figures/scores_language\n  found:    no such figure" in gone.stderr


def test_one_point_of_a_figure(project):
    path = project / "results/mini/figures/scores_language.csv"
    before, after = change_digit(path, 1, "symmetry_median")
    where, text = found(project)
    assert where == {"mini/figures/scores_language.csv"} and f"found:    {after}\n  expected: {before}" in text
    forge(beside(path), "outputs", path)
    where, text = found(project)
    assert where == {"mini/figures/scores_language.csv"}
    assert "line 2 (model " in text and "column symmetry_median" in text and before in text and after in text


@pytest.mark.parametrize("ending", ["tex", "md", "csv"])
def test_one_digit_of_a_table(project, ending):
    path = project / f"results/mini/tables/symmetry_scores.{ending}"
    edit(path, "0.", "1.") if "0." in path.read_text() else edit(path, "0", "1")
    assert found(project)[0] == {f"mini/tables/symmetry_scores.{ending}"}
    forge(beside(path), "outputs", path)
    assert found(project)[0] == {f"mini/tables/symmetry_scores.{ending}"}


def test_two_models_weights_exchanged(project):
    folders = [project / "results/models" / name for name in ("enc", "dec")]
    exchange(*(folder / "final.safetensors" for folder in folders))
    where, text = found(project)
    assert where >= {"models/enc/final.safetensors", "models/dec/final.safetensors"}
    assert "metadata" in text and "sha256" in text


def test_two_models_weights_exchanged_with_their_manifests(project):
    folders = [project / "results/models" / name for name in ("enc", "dec")]
    for name in ("final.safetensors", "manifest.json"):
        exchange(*(folder / name for folder in folders))
    where, text = found(project)
    assert {"models/enc/manifest.json", "models/dec/manifest.json", "models/enc/scores.csv", "models/dec/scores.csv"} <= where
    assert "manifest.json: model\n  found:    dec\n  expected: enc" in text


def test_two_models_exchanged_whole(project):
    exchange(*(project / "results/models" / name for name in ("enc", "dec")))
    where, text = found(project)
    assert "models/enc/manifest.json" in where and "column model\n  found:    dec\n  expected: enc" in text


def test_a_figure_older_than_its_numbers(project):
    summary, stem = project / "results/mini/collected/summary.csv", project / "results/mini/figures/scores_language"
    change_digit(summary, 1, "symmetry_median", place=1)  # so that it can be seen
    forge(summary.parent / OF_FOLDER, "outputs", summary)
    before = stem.with_suffix(".png").read_bytes()
    figure.command("scores_language", stem, summary=summary)
    stem.with_suffix(".png").write_bytes(before)  # the old picture beside new numbers, and of the latest time
    where, _ = found(project)
    assert "mini/figures/scores_language.png" in where and "mini/figures/scores_language.csv" not in where


def test_a_figure_older_than_what_it_was_made_from(project):
    summary = project / "results/mini/collected/summary.csv"
    change_digit(summary, 1, "symmetry_median")
    forge(summary.parent / OF_FOLDER, "outputs", summary)
    where, text = found(project)
    assert where == {"mini/collected/summary.csv"}, "the root, and no finding of what was made from it"
    assert verdicts(audited(project))["figure", "scores_language"] == MISMATCH
    assert "enc final, symmetry_median" in text, "and the statistic itself is computed anew"


def test_an_edited_summary(project):
    change_digit(project / "results/mini/collected/summary.csv", 2, "directionality_excess_q1")
    where, text = found(project)
    assert where == {"mini/collected/summary.csv"} and "what was written then" in text


def test_edited_losses_of_a_run(project):
    path = project / f"results/runs/{RUN}/losses.csv"
    edit(path, "4.25", "4.15")
    where, text = found(project)
    assert where == {f"runs/{RUN}/losses.csv"} and "what run" not in text.splitlines()[0]


def test_an_edited_end_of_a_run(project):
    folder = project / f"results/runs/{RUN}"
    edit(folder / "done.json", "4.25", "4.15")
    for record in (folder / OF_FOLDER, project / "results/mini/collected" / OF_FOLDER):
        forge(record, "outputs" if record.parent == folder else "inputs", folder / "done.json")
    where, text = found(project)
    assert where == {"mini/collected/runs.csv"} and f"{RUN}, heldout_loss\n  found:    4.25\n  expected: 4.15" in text


def test_an_edited_manifest(project):
    path = project / "results/models/enc/manifest.json"
    edit(path, "file:models/enc", "file:models/inc")
    where, text = found(project)
    assert where == {"models/enc/manifest.json"} and "what model enc was made from" in text
    forge(beside(path.with_name("scores.csv")), "inputs", path)
    forge(project / "results/mini/figures/wqk_examples.provenance.json", "inputs", path)
    assert found(project)[0] == set(), "the models of this test are of no table"
    with inside(project):
        from qkgeom.audit.chain import audit

        result = audit("mini", Options(Path("results")), {"enc": "file:models/enc"}, lambda items, label: iter(items))
    assert [finding.item for finding in result.findings] == ["uri"]


def test_a_checkpoint_of_a_run_that_is_not_the_one_extracted(project):
    path = project / f"results/runs/{RUN}/snapshots/0000400/model.safetensors"
    content = bytearray(path.read_bytes())
    name = b"bert.encoder.layer.1.attention.self.key.weight"
    tensors, _, _ = plain.read_header(path)
    content[tensors[name.decode()].start] ^= 1
    path.write_bytes(content)
    where, text = found(project)
    assert where == {f"runs/{RUN}/snapshots/0000400/model.safetensors"} and name.decode() in text


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_a_picture_replaced(project, ending):
    figures = project / "results/mini/figures"
    shutil.copy(figures / f"wqk_examples.{ending}", figures / f"scores_language.{ending}")
    assert found(project)[0] == {f"mini/figures/scores_language.{ending}"}
    forge(figures / "scores_language.provenance.json", "outputs", figures / f"scores_language.{ending}")
    assert found(project)[0] == set(), "its digest fits"
    assert found(project, sample=None)[0] == {f"mini/figures/scores_language.{ending}"}, "but with --all it is drawn again"


@pytest.mark.parametrize(
    "name",
    [
        *("models/enc/manifest.json", "models/enc/scores.csv", "models/enc/scores.provenance.json"),
        *("mini/collected/summary.csv", "mini/collected/provenance.json", "mini/tables/symmetry_scores.tex"),
        *("mini/figures/scores_language.png", "mini/figures/scores_language.provenance.json"),
        *(f"runs/{RUN}/done.json", f"runs/{RUN}/snapshots/0000000/model.safetensors", f"runs/{RUN}/provenance.json"),
    ],
)
def test_a_missing_file(project, name):
    (project / "results" / name).unlink()
    where, text = found(project)
    assert name in where and f"results/{name}\n  found:    no such file" in text


@pytest.mark.parametrize(("change", "from_source"), [("column", False), ("cut", True), ("layer", False), ("gone", True)])
def test_scores_that_cannot_be_read_are_blamed_on_their_file(project, change, from_source):
    path = project / "results/models/enc/scores.csv"
    text = path.read_text()
    changed = {
        "column": text.replace("symmetry", "other", 1),
        "cut": text[:-30],
        "layer": text.replace("final,2,", "final,two,", 1),
    }
    path.write_text(changed[change]) if change in changed else path.unlink()
    weights = path.with_name("final.safetensors")
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    where, text = found(project, from_source=from_source)
    assert where == {"models/enc/scores.csv", "models/enc/final.safetensors"}, "and the weights are checked all the same"
    told = {"column": "no column symmetry", "cut": "is no whole row", "layer": "is no whole row", "gone": "no such file"}
    assert told[change] in text
    assert "delete results/models/enc/scores.csv" in text


def test_rows_of_a_snapshot_that_the_model_does_not_have(project):
    path = project / "results/models/enc/scores.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + lines[-1].replace("enc,final,2,", "enc,later,2,"))
    forge(beside(path), "outputs", path)
    forge(project / "results/mini/collected" / OF_FOLDER, "inputs", path)
    _, text = found(project)
    assert "enc/scores.csv: column snapshot\n  found:    later\n  expected: those of manifest.json" in text


def test_heads_of_which_the_first_is_missing(project):
    path = project / "results/models/enc/scores.csv"
    text = path.read_text()
    path.write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith(("enc,final,0,0,",))))
    assert path.read_text() != text
    forge(beside(path), "outputs", path)
    _, text = found(project, sample=None)
    assert "snapshot final, layer 0, head 0\n  found:    no such row" in text


@pytest.mark.parametrize(
    ("model", "entry"), [("enc", "uri"), ("enc", "source"), (RUN, "snapshots"), (RUN, "file"), (RUN, "layers"), (RUN, "stored")]
)
def test_a_manifest_that_lacks_an_entry(project, model, entry):
    path = project / f"results/models/{model}/manifest.json"
    edit(path, f'"{entry}": ', f'"no_{entry}": ')
    where, text = found(project, from_source=True)
    assert f"models/{model}/manifest.json" in where and f"found:    KeyError('{entry}')" in text
    assert where <= {f"models/{model}/manifest.json", f"models/{model}/scores.csv", f"models/{model}/0.safetensors"}


@pytest.mark.parametrize("place", [8, -5])
def test_damaged_weights_are_not_blamed_on_the_layout_or_the_figure(project, place):
    path = project / "results/models/enc/final.safetensors"
    content = bytearray(path.read_bytes())
    tensor = plain.read_header(path)[0]["layer.000.W_q"]
    content[tensor.start : tensor.stop] = bytes(tensor.stop - tensor.start)  # the figure shows it
    content[place] ^= 1
    path.write_bytes(content)
    where, text = found(project, from_source=True)
    assert where == {"models/enc/final.safetensors"} and "mend the layout" not in text
    (part,) = (part for part in audited(project).parts if part.name == "wqk_examples")
    assert part.verdict == MISMATCH and part.follows == ["results/models/enc/final.safetensors"]


def test_a_run_that_the_collected_tables_leave_out(project):
    path = project / "results/mini/collected/runs.csv"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    forge(path.with_name(OF_FOLDER), "outputs", path)
    where, text = found(project)
    assert where == {"mini/collected/runs.csv"} and f"runs.csv: rows\n  found:    {RUN}" in text


def test_a_missing_row_of_scores(project):
    path = project / "results/models/enc/scores.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("enc,final,2,all")))
    forge(beside(path), "outputs", path)
    _, text = found(project)
    assert "found:    layers 0, 1" in text and "expected: layers 0, 1, 2" in text


def test_a_figure_without_a_record(project):
    figures = project / "results/mini/figures"
    shutil.copy(figures / "scores_language.png", figures / "mine.png")
    where, text = found(project)
    assert where == {"mini/figures/mine.provenance.json"} and "no such file" in text


# what cannot be checked


def test_dropped_weights_are_said_and_read_again_from_the_source(project):
    (project / "results/models/dec/final.safetensors").unlink()
    audit = audited(project)
    assert audit.findings == [] and audit.verdict == IN_PART
    assert verdicts(audit)["model", "dec"] == verdicts(audit)["figure", "wqk_examples"] == IN_PART
    (dec,) = (part for part in audit.parts if part.name == "dec")
    assert "dropped" in dec.unchecked[0] and "scores derived anew" not in dec.counts
    (dec,) = (part for part in audited(project, from_source=True).parts if part.name == "dec")
    assert dec.counts["scores derived anew"] == 3 * (1 + 4) and not dec.findings
    path = project / "results/models/dec/scores.csv"
    change_digit(path, 1, "symmetry")
    forge(beside(path), "outputs", path)
    _, text = found(project, from_source=True)
    assert "models/dec/scores.csv: snapshot final, layer 0, head all, symmetry" in text


def test_a_failed_model_is_no_mismatch(project):
    folder = project / "results/models/enc"
    manifest = {"model": "enc", "status": "failed", "reason": "it is gated\nand so on", "uri": "file:models/enc"}
    write_json(folder / "manifest.json", {"schema": 1, **manifest})
    with inside(project):
        remake_failed()
    (part,) = (part for part in audited(project).parts if part.name == "enc")
    assert part.findings == [] and part.unchecked == ["it could not be extracted: it is gated"]


def remake_failed():
    from qkgeom.verbs import score

    score.command(["results/models/enc"], in_place=True, record="lasting", device="cpu")


def test_scores_of_other_code_are_noted(project):
    record = beside(project / "results/models/enc/scores.csv")
    write_json(record, json.loads(record.read_text()) | {"code": "0123456789abcdef"})
    audit = audited(project)
    (part,) = (part for part in audit.parts if part.name == "enc")
    assert audit.verdict == VERIFIED and "other code (0123456789abcdef)" in part.notes[0]


# the command


def test_the_command_prints_a_verdict_and_leaves_its_page(project):
    good = qkgeom("audit", "results/mini", cwd=project)
    assert good.returncode == 0, good.stderr
    lines = [line.split("\t") for line in good.stdout.splitlines()]
    assert lines[0] == ["kind", "name", "verdict", "checked", "remarks"]
    assert {tuple(line[:3]) for line in lines[1:]} >= {("model", "enc", VERIFIED), ("figure", "wqk_examples", VERIFIED)}
    folder = project / "results/mini/audit"
    assert json.loads((folder / "audit.json").read_text())["verdict"] == VERIFIED
    first = (folder / "audit.json").read_bytes()
    before, after = change_digit(project / "results/mini/figures/scores_language.csv", 1, "symmetry_median")
    bad = qkgeom("audit", "results/mini", cwd=project)
    assert bad.returncode == 1
    assert (
        "results/mini/figures/scores_language.csv\n  found:    sha256" in bad.stderr
        and "  do:       make it again" in bad.stderr
    )
    found = json.loads((folder / "audit.json").read_text())
    assert found["verdict"] == MISMATCH and found["findings"][0]["where"].endswith("scores_language.csv")
    assert "scores_language.csv" in (folder / "audit.md").read_text()
    change_back = (project / "results/mini/figures/scores_language.csv").read_text().replace(after, before, 1)
    (project / "results/mini/figures/scores_language.csv").write_text(change_back)
    again = qkgeom("audit", "results/mini", "--json", cwd=project)
    assert again.returncode == 0 and again.stdout.encode() == first == (folder / "audit.json").read_bytes()


def test_what_is_not_of_this_run_is_left_alone(project):
    figures = project / "results/mini/figures"
    shutil.copy(figures / "scores_language.png", figures / "mine.png")
    wanted = [word for name in FIGURES for word in ("--rendered", f"results/mini/figures/{name}.pdf")]
    told = qkgeom("audit", "results/mini", *wanted, "--rendered", "results/mini/tables/symmetry_scores.csv", cwd=project)
    assert told.returncode == 0, told.stderr
    assert "not checked: figure mine" in (project / "results/mini/audit/audit.md").read_text()
    for path in figures.glob("scores_language.*"):
        path.unlink()
    gone = qkgeom("audit", "results/mini", *wanted, cwd=project)
    assert gone.returncode == 1 and "figures/scores_language\n  found:    no such figure" in gone.stderr


def test_the_runs_figures_may_be_named_from_anywhere(project):
    change_digit(project / "results/mini/figures/scores_language.csv", 1, "symmetry_median")
    told = qkgeom("audit", "results/mini", "--rendered", str(project / "results/mini/figures/scores_language.pdf"), cwd=project)
    assert told.returncode == 1 and "results/mini/figures/scores_language.csv\n  found:    sha256" in told.stderr


def test_the_preset_is_the_folder_one_is_in(project):
    told = qkgeom("audit", ".", cwd=project / "results/mini")
    assert told.returncode == 0 and "mini: verified" in told.stderr, told.stderr


def test_remarks_are_of_one_line_and_told_once(project):
    (project / "results/models/dec/final.safetensors").unlink()
    record = project / "results/mini/figures/scores_language.provenance.json"
    write_json(record, json.loads(record.read_text()) | {"parameters": {"inputs": {}, "layers": {}}})
    told = qkgeom("audit", "results/mini", cwd=project)
    assert {line.count("\t") for line in told.stdout.splitlines()} == {4}
    (model,) = (
        part for part in json.loads((project / "results/mini/audit/audit.json").read_text())["models"] if part["name"] == "dec"
    )
    assert len(model["not_checked"]) == 1 and model["notes"] == []


def test_a_seed_is_not_negative(project):
    told = qkgeom("audit", "results/mini", "--seed", "-1", cwd=project)
    assert told.returncode == 2 and "--seed" in told.stderr


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_a_file_that_changes_during_the_audit_is_not_packed(project, monkeypatch, change):
    from qkgeom.verbs import audit as verb

    path = project / "results/models/enc/scores.csv"
    whole = verb.audit

    def audited_and_changed(*given):
        result = whole(*given)
        change_digit(path, 1, "symmetry") if change == "edited" else path.unlink()
        return result

    monkeypatch.setattr(verb, "audit", audited_and_changed)
    with inside(project), pytest.raises(QkgeomError, match="changed while the run was audited") as raised:
        verb.command(Path("results/mini"), bundle=Path("out.zip"))
    assert "results/models/enc/scores.csv" in str(raised.value) and not (project / "out.zip").exists()


@pytest.mark.parametrize("name", ["out.tar.gz", "out.zip"])
def test_a_damaged_bundle_is_refused(project, tmp_path, name):
    bundle = tmp_path / name
    preset = project / "results/mini"
    Bundle.of(preset, bundle).write()
    whole = bundle.read_bytes()
    refused = 0
    for place in range(len(whole) // 20, len(whole) * 9 // 10, len(whole) // 13):
        for damaged in (whole[:place], whole[:place] + b"\xff" * 8 + whole[place + 8 :]):
            bundle.write_bytes(damaged)
            try:
                with opened_bundle(bundle) as opened:  # a time that only a zip's own tables hold
                    assert (opened / "check.txt").exists() == (preset / "check.txt").exists()
            except UsageError as error:
                refused += error.what == "this is no bundle"
    assert refused > 15


@pytest.mark.parametrize("name", ["out.tar.gz", "out.zip"])
def test_a_bundle_is_verified_elsewhere_against_the_same_sources(project, tmp_path, name):
    bundle = tmp_path / name
    made = qkgeom("audit", "results/mini", "--bundle", str(bundle), cwd=project)
    assert made.returncode == 0, made.stderr
    first = bundle.read_bytes()
    qkgeom("audit", "results/mini", "--bundle", str(bundle), cwd=project)
    assert bundle.read_bytes() == first
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(project / "models", elsewhere / "models")
    shutil.copy(bundle, elsewhere / name)
    told = qkgeom("audit", name, "--from-source", "--json", cwd=elsewhere)
    assert told.returncode == 0, told.stderr
    verdict = json.loads(told.stdout)
    models = {part["name"]: part for part in verdict["models"]}
    assert (
        models["enc"]["checked"]["scores derived anew"] == 3 * (1 + 4) and models["dec"]["checked"]["ranges of the source"] == 6
    )
    assert "training run" in " ".join(models[RUN]["not_checked"])
    assert not (elsewhere / "results").exists()
    # another source, and another digit
    path = elsewhere / "models/enc/model.safetensors"
    content = bytearray(path.read_bytes())
    content[plain.read_header(path)[0]["bert.encoder.layer.1.attention.self.query.weight"].start] ^= 1
    path.write_bytes(content)
    told = qkgeom("audit", name, "--from-source", cwd=elsewhere)
    assert told.returncode == 1 and "bert.encoder.layer.1.attention.self.query.weight" in told.stderr


def test_a_changed_bundle_is_found_and_no_bundle_refused(project, tmp_path):
    bundle, folder = tmp_path / "out.tar.gz", tmp_path / "open"
    assert qkgeom("audit", "results/mini", "--bundle", str(bundle), cwd=project).returncode == 0
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
        archive.extractall(folder, filter="data")
    assert not [name for name in names if name.endswith((".safetensors", ".png", ".pdf"))]
    assert {"results/models/enc/manifest.json", "results/mini/figures/wqk_examples.csv"} <= set(names)
    change_digit(folder / "results/models/dec/scores.csv", 1, "symmetry")
    with tarfile.open(bundle, "w:gz") as archive:
        archive.add(folder / "results", "results")
    told = qkgeom("audit", str(bundle), cwd=tmp_path)
    assert (
        told.returncode == 1 and "\nresults/models/dec/scores.csv: snapshot final, layer 0, head all, symmetry" in told.stderr
    )
    assert "scratch" not in told.stderr + told.stdout and "-o FOLDER" in told.stderr
    assert "audit with --from-source" in told.stderr
    told = qkgeom("audit", str(bundle), "-o", "page", "--from-source", cwd=tmp_path)
    said = told.stdout + told.stderr.partition("\n")[2]  # after the log's line, which repeats the command
    assert "one of the two files is wrong" in said and "--from-source" not in said and "-o FOLDER" not in said
    assert "scratch" not in (tmp_path / "page/audit.md").read_text()
    with tarfile.open(bundle, "w:gz") as archive:
        archive.add(folder / "results/mini/collected", "../escaped")
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz"):
        pass
    for wrong in (bundle, project / "models.tsv", tmp_path / "empty.tar.gz"):
        refused = qkgeom("audit", str(wrong), cwd=tmp_path)
        assert refused.returncode == 2 and "this is no bundle" in refused.stderr
    assert "0 files results/*/collected/provenance.json" in refused.stderr
    assert not (tmp_path / "escaped").exists()


def exchange(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)
