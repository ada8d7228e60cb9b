"""The command line and the Python call: what they print, write and return, and how they fail."""

import csv
import io
import json
import re
import shutil

import numpy as np
import pytest

from checkpoints import bert_config, bert_tensors, llama_config, llama_tensors, write_bert, write_checkpoint, write_llama
from project import qkgeom
from qkgeom.artifacts import write_manifest
from qkgeom.extraction import failed_manifest
from qkgeom.scoring import COLUMNS, SCORES
from qkgeom.standing import print_scores
from qkgeom.untrained import rows_with_null


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("bert's folder"))


@pytest.fixture(scope="module")
def artifact(bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifact") / "tiny"
    result = qkgeom("extract", f"file:{bert}", "--output", str(folder))
    assert result.returncode == 0, result.stderr
    return folder


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_score_prints_its_rows_into_a_pipe_and_the_medians_beside_it(bert, tmp_path):
    result = qkgeom("score", str(bert), "--null", "--structure", COLUMNS="40")
    assert result.returncode == 0
    assert "Median over layers: symmetry " in result.stderr and "Verdict: " in result.stderr
    assert qkgeom("score", str(bert), "--null", "--structure", "-o", str(tmp_path / "x.csv")).returncode == 0
    assert [line.split("\t") for line in result.stdout.splitlines()] == list(csv.reader((tmp_path / "x.csv").open()))


@pytest.mark.parametrize(("width", "heads"), [("80", ["all"]), ("20", ["all", "11"])])
def test_a_terminals_tables_cut_no_number(monkeypatch, capsys, width, heads):
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    sizes = {"d_model": 768, "n_head": 12, "n_kv_head": 12, "d_head": 64, "n_row_outliers": 112, "n_col_outliers": 113}
    scores = {"symmetry": -0.1234, "directionality": -0.2345, "directionality_excess": -0.3456, "fro_norm": 1.234e-30}
    structure = {"effective_rank": 123.4, "top1_share": 0.1234, "top10_share": 0.5678}
    structure |= {"top_row_share": 0.0632, "top_rows": "5 19 28 700 701", "top_col_share": 0.0755, "top_cols": "700 1 2 3 4"}
    row = {"model": "m", "snapshot": "final", "layer": 31, "status": "no_outliers"} | sizes | scores | structure
    print_scores(rows_with_null([{**row, "head": head} for head in heads]))
    shown = capsys.readouterr().out
    for cell in ("-0.1234", "-0.2345", "-0.3456", "1.234e-30", "112/113", "no_outliers", "123.4", "12.3%", "700 1 2 3 4"):
        assert len(re.findall(rf" {re.escape(cell)}\s", shown)) == len(heads)
    assert len(re.findall(r"-\d+\.\d\s", shown)) == 3 * len(heads), "z"
    assert "the 5 largest outliers at most" in shown and "…" not in shown
    if heads == ["all"]:
        assert max(len(line) for line in shown.splitlines() if "│" in line) <= 80


def test_score_writes_the_same_file_from_a_path_as_from_an_artifact(bert, artifact, tmp_path):
    assert qkgeom("score", str(bert), "-o", str(tmp_path / "a.csv"), "--heads").stdout == ""
    assert qkgeom("score", str(artifact), "-o", str(tmp_path / "b.csv"), "--heads", "--threads", "1").returncode == 0
    a, b = (rows((tmp_path / name).read_text()) for name in ("a.csv", "b.csv"))
    assert tuple(a[0]) == COLUMNS
    assert len(a) == 3 * 5
    drop = lambda table: [{**row, "model": ""} for row in table]  # noqa: E731
    assert drop(a) == drop(b)


def test_score_writes_the_scores_of_several_artifacts_beside_them(artifact, tmp_path):
    folders = [shutil.copytree(artifact, tmp_path / name) for name in ("one", "two")]
    assert qkgeom("score", str(artifact), "-o", str(tmp_path / "alone.csv")).returncode == 0
    result = qkgeom("score", *map(str, folders), "--in-place")
    assert (result.returncode, result.stdout) == (0, "")
    for folder in folders:
        assert (folder / "scores.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()
    folders[1].joinpath("scores.csv").unlink()
    assert qkgeom("score", str(folders[1]), "--in-place").returncode == 0  # a single one, too
    assert (folders[1] / "scores.csv").exists()
    for wrong in (["--json"], ["--null", "-o", "x.csv"]):
        refused = qkgeom("score", str(folders[0]), "--in-place", *wrong)
        assert refused.returncode == 2 and "do not go together" in refused.stderr
        named = ", ".join(name for name in ("-o", *wrong[:1]) if name in wrong)
        assert f"--in-place and {named}" in refused.stderr and f"leave out {named}" in refused.stderr
    refused = qkgeom("score", *map(str, folders))
    assert refused.returncode == 2 and "2 models" in refused.stderr and "add --in-place" in refused.stderr
    assert "no artifact here" in qkgeom("score", str(folders[0]), "hf:org/name", "--in-place").stderr


def test_score_prints_json(artifact):
    table = json.loads(qkgeom("score", str(artifact), "--json").stdout)
    assert [row["layer"] for row in table] == [0, 1, 2]
    assert set(table[0]) == set(COLUMNS)


def test_scores_from_python_equal_those_from_the_file(artifact):
    import qkgeom as library

    table = json.loads(qkgeom("score", str(artifact), "--json", "--heads").stdout)
    frame = library.score(bert_tensors(), bert_config(), heads=True)
    assert tuple(frame.columns) == COLUMNS
    assert frame["symmetry"].tolist() == pytest.approx([row["symmetry"] for row in table], abs=1e-12)


@pytest.mark.faults
def test_what_is_no_model_is_refused_from_python(artifact):
    import qkgeom as library
    from qkgeom.errors import UsageError

    with pytest.raises(UsageError, match="neither a model nor a state dict"):
        library.score(str(artifact))
    with pytest.raises(UsageError, match="does not say its architecture"):
        library.score(bert_tensors())
    with pytest.raises(UsageError, match=r"no config(.|\n)*'some/config.json'(.|\n)*a mapping"):
        library.score(bert_tensors(), "some/config.json")
    with pytest.raises(UsageError, match=r"no such precision(.|\n)*'half'(.|\n)*'auto' or 'float64'"):
        library.score(bert_tensors(), bert_config(), precision="half")


@pytest.mark.faults
def test_no_key_head_is_refused_in_a_config(tmp_path):
    folder = write_checkpoint(tmp_path / "m", llama_tensors(), llama_config() | {"num_key_value_heads": 0})
    result = qkgeom("score", str(folder))
    assert result.returncode == 1
    assert "does not state num_key_value_heads" in result.stderr and "{'num_key_value_heads': 0}" in result.stderr


@pytest.mark.faults
def test_a_failed_artifact_has_no_scores(tmp_path):
    assert qkgeom("extract", "file:nothing here", "-o", str(tmp_path / "x")).returncode == 0
    result = qkgeom("score", str(tmp_path / "x"))
    assert result.returncode == 1
    assert "was not extracted" in result.stderr
    assert "no such file or folder" in result.stderr
    assert qkgeom("score", str(tmp_path / "x"), "--in-place", "--record", "lasting").returncode == 0
    assert (tmp_path / "x/scores.csv").read_text() == ",".join(COLUMNS) + "\n"


def test_scores_of_modules_from_python(tmp_path):
    torch = pytest.importorskip("torch")
    import timm
    from transformers import LlamaConfig, LlamaModel

    import qkgeom as library

    config = LlamaConfig(
        hidden_size=24, num_attention_heads=6, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=32
    )
    model = LlamaModel(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "llama")
    table = json.loads(qkgeom("score", str(tmp_path / "llama"), "--json").stdout)
    assert library.score(model.state_dict(), model.config).equals(library.score(model))
    assert library.score(model)["symmetry"].tolist() == pytest.approx([row["symmetry"] for row in table], abs=1e-12)
    frame = library.score(timm.create_model("vit_tiny_patch16_224", depth=2))
    assert frame[["d_model", "n_head", "d_head"]].drop_duplicates().to_numpy().tolist() == [[192, 3, 64]]


def test_a_checkpoint_without_config_needs_only_the_heads(tmp_path):
    folder = write_llama(tmp_path / "with")
    bare = write_checkpoint(tmp_path / "bare", llama_tensors(), llama_config()) / "model.safetensors"
    (bare.parent / "config.json").unlink()
    refused = qkgeom("score", str(bare))
    assert refused.returncode == 1
    assert "--architecture, --n-head and --n-kv-head" in refused.stderr
    told = qkgeom("score", str(bare), "--architecture", "llama").stderr
    assert "so its heads are unknown" in told and "say --n-head and --n-kv-head" in told
    said = ["--architecture", "llama", "--n-head", "4", "--n-kv-head", "2"]
    pairs = [json.loads(qkgeom("score", str(path), "--json", *more).stdout) for path, more in ((folder, []), (bare, said))]
    assert [row["symmetry"] for row in pairs[0]] == [row["symmetry"] for row in pairs[1]]


def test_a_model_with_two_parts_is_scored_by_part(tmp_path):
    torch = pytest.importorskip("torch")
    dims = {f"n_{tower}_{size}": n for tower in ("audio", "text") for size, n in (("state", 24), ("head", 4), ("layer", 3))}
    dims["n_text_layer"] = 2
    state = {
        f"{part}.blocks.{layer}.{kind}.{role}.weight": torch.randn(24, 24).half()
        for part, kinds in (("encoder", ["attn"]), ("decoder", ["attn", "cross_attn"]))
        for layer in range(3 if part == "encoder" else 2)
        for kind in kinds
        for role in ("query", "key")
    }
    path = tmp_path / "tiny.pt"
    torch.save({"dims": dims, "model_state_dict": state}, path)
    for part, n_layer in (("encoder", 3), ("decoder", 2)):
        table = json.loads(qkgeom("score", str(tmp_path), "--part", part, "--json").stdout)
        pairs = [[state[f"{part}.blocks.{n}.attn.{role}.weight"].double() for role in ("query", "key")] for n in range(n_layer)]
        W_qk = [query.T @ key for query, key in pairs]
        expected = [float((W @ W).trace() / W.norm() ** 2) for W in W_qk]
        assert [row["symmetry"] for row in table] == pytest.approx(expected, abs=1e-6)
    refused = qkgeom("score", str(path))
    assert refused.returncode == 2
    assert "has the parts decoder, encoder" in refused.stderr
    assert "--part" in refused.stderr


def test_where_a_model_stands_among_scored_models(bert, tmp_path):
    summary = tmp_path / "results/mini/collected/summary.csv"
    summary.parent.mkdir(parents=True)
    rows = ["a,encoder,language,-0.9", "b,encoder,vision,0.9", "c,decoder,language,-0.8", "d,decoder,training,0.8"]
    summary.write_text("\n".join(["model,role,group,symmetry_median", *rows]) + "\n")
    shown = qkgeom("score", str(bert), cwd=tmp_path).stderr
    assert "Scored encoders: 1 of 2 are less symmetric than this model; they range from -0.900 to +0.900" in shown
    assert "One scored decoder: symmetry -0.800" in shown


def test_the_snapshots_of_a_series_are_told_apart(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    row = {"model": "m", "layer": 0, "head": "all", "n_row_outliers": 1, "n_col_outliers": 1, "status": "ok", "fro_norm": 1.0}
    row |= {"d_model": 64, "n_head": 4, "n_kv_head": 4, "d_head": 16}
    scores = [dict.fromkeys(SCORES, value) for value in (0.25, 0.75)]
    print_scores([{**row, **scores[0], "snapshot": "0"}, {**row, **scores[1], "snapshot": "400"}])
    shown = capsys.readouterr().out
    assert "snapshot" in shown and "Median over layers of snapshot 400: symmetry +0.750" in shown
    print_scores([{**row, **scores[0], "snapshot": "0"}])
    assert "snapshot" not in capsys.readouterr().out


def test_medians_tell_how_many_layers_they_are_over(capsys):
    row = {"model": "m", "snapshot": "final", "head": "all", "d_model": 64, "n_head": 4, "n_kv_head": 4, "d_head": 16}
    row |= {"n_row_outliers": None, "n_col_outliers": None, "fro_norm": None}
    statuses = {"ok": 0.5, "zero": None, "not_finite": None}
    print_scores(
        [
            {**row, "layer": n, "status": status, **dict.fromkeys(SCORES, value)}
            for n, (status, value) in enumerate(statuses.items())
        ]
    )
    assert "Median over 1 of 3 layers, the others have no score: symmetry +0.500" in capsys.readouterr().err


def test_an_artifact_is_found_by_its_id(artifact, tmp_path):
    import shutil

    shutil.copytree(artifact, tmp_path / "results/models/tiny")
    assert "bert" in qkgeom("show", "tiny", cwd=tmp_path).stdout
    assert "Median over layers" in qkgeom("score", "tiny", cwd=tmp_path).stderr


def test_show_prints_a_manifest_readably(artifact):
    shown = qkgeom("show", str(artifact)).stdout
    for text in ("status", "ok", "bert", "0-2", "float32", "read"):
        assert text in shown
    tensors = qkgeom("show", str(artifact), "--tensors").stdout
    manifest = json.loads((artifact / "manifest.json").read_text())
    for layer in manifest["snapshots"]["final"]["layers"]:
        assert layer["read"]["q"]["sha256"] in tensors


def test_models_lists_the_table(tmp_path):
    result = qkgeom("models", cwd=tmp_path)
    assert "all-minilm-l6-v2" in result.stdout and "run:" not in result.stdout
    assert result.returncode == 0
    listed = qkgeom("models", "--preset", "mini", cwd=tmp_path).stdout
    assert "all-minilm-l6-v2" in listed and "mini.t5.s0.decoder" in listed and "smoke." not in listed


@pytest.mark.faults
@pytest.mark.parametrize("verb", [["models"], ["plan"], ["collect", "scores.csv", "-o", "."]])
def test_a_preset_that_does_not_exist_is_refused(verb, tmp_path):
    result = qkgeom(*verb, "--preset", "nosuch", cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    assert "no preset nosuch" in result.stderr and "beyond, laptop, mini, paper, smoke" in result.stderr


def test_dropped_weights_are_not_shown_as_if_they_were_here(artifact, tmp_path):
    folder = tmp_path / "results" / "models" / "all-minilm-l6-v2"
    shutil.copytree(artifact, folder)
    assert "final: final.safetensors" in qkgeom("show", str(folder)).stdout
    assert "\textracted\t" in qkgeom("models", cwd=tmp_path).stdout
    qkgeom("score", str(folder), "-o", str(folder / "scores.csv"), "--drop-weights", "--device", "cpu")
    shown = qkgeom("show", str(folder)).stdout
    assert "weights dropped" in shown and "final.safetensors" not in shown
    assert "all-minilm-l6-v2\tscored, weights dropped\t" in qkgeom("models", cwd=tmp_path).stdout


def test_retry_says_what_it_leaves(artifact, tmp_path):
    for name, manifest in (("my-bert", json.loads((artifact / "manifest.json").read_text())), ("my-gated", None)):
        (tmp_path / "results" / "models" / name).mkdir(parents=True)
        write_manifest(tmp_path / "results" / "models" / name, manifest or failed_manifest(name, "hf:o/n", "it is gated"))
    result = qkgeom("retry", "my-gated", "my-bert", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "cleared: my-gated; run snakemake again\nleft as they are, since they did not fail: my-bert\n"
    assert (tmp_path / "results/models/my-bert/manifest.json").exists()
    assert qkgeom("retry", cwd=tmp_path).stdout == "no failed model to clear\n"


def test_every_verb_explains_itself():
    top = qkgeom("--help").stdout
    for verb in re.findall(r"│ (\w+) ", top):
        assert qkgeom(verb, "--help").returncode == 0


def test_start_up_imports_neither_torch_nor_transformers():
    import subprocess
    import sys

    from project import ROOT

    code = "import sys; import qkgeom.cli; sys.exit(bool({'torch', 'transformers', 'pandas', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "workflow", check=False).returncode == 0


def test_extract_from_safetensors_never_imports_torch(bert, tmp_path):
    import subprocess
    import sys

    from project import ROOT

    code = (
        "import sys; from qkgeom.cli import app; "
        f"app(['extract', {str(bert)!r}, '-o', {str(tmp_path / 'x')!r}], standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "workflow", check=False).returncode == 0
    assert (tmp_path / "x/manifest.json").exists()


def test_two_extractions_give_the_same_bytes(bert, artifact, tmp_path):
    qkgeom("extract", f"file:{bert}", "--output", str(tmp_path / "tiny"))
    for name in ("manifest.json", "final.safetensors"):
        assert (tmp_path / "tiny" / name).read_bytes() == (artifact / name).read_bytes()


@pytest.mark.faults
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["score"], 2, "Missing argument"),
        (["scor", "x"], 2, "No such command"),
        (["score", "no such/thing"], 2, "neither a URI nor an existing path"),
        (["score", "file:no such thing"], 1, "no such file or folder"),
        (["score", "{bert}", "--device", "abacus"], 2, "there is no such device"),
        (["score", "{bert}", "--device", "cuda:99"], 2, "there is no such device"),
        (["score", "{bert}", "--part", "decoder"], 2, "one part only"),
        (["score", "{bert}", "--architecture", "mamba"], 1, "no layout reads this architecture"),
        (["score", "{bert}", "--n-head", "3", "--n-kv-head", "2"], 2, "head counts are impossible"),
        (["score", "{bert}", "--n-kv-head", "3"], 2, "found:    --n-kv-head 3\n"),
        (["score", "{bert}", "--n-head", "0"], 2, "Invalid value for '--n-head'"),
        (["score", "{bert}", "--n-head", "4", "--n-kv-head", "0"], 2, "Invalid value for '--n-kv-head'"),
        (["score", "README.md"], 1, "no checkpoint of a known format"),
        (["score", "{bert}", "-o", "."], 2, "a folder is where a file should be written"),
        (["extract", "{bert}", "--layout", "lama", "-o", "x"], 2, "no layout is called 'lama'"),
        (["show", "."], 1, "no artifact here"),
        (["retry"], 2, "there is no results folder here"),
        (["figure", "nothing", "-o", "x"], 2, "nothing"),
        (["collect", "a/b/scores.csv", "-o", "x"], 2, "no model in the table"),
    ],
)
def test_wrong_usage_is_one_message_and_an_exit_code(bert, tmp_path, arguments, code, message):
    (tmp_path / "README.md").write_text("# A text, and no checkpoint at all\n")
    result = qkgeom(*(str(bert) if word == "{bert}" else word for word in arguments), cwd=tmp_path)
    assert message in result.stderr
    assert result.returncode == code
    assert "Traceback" not in result.stderr


@pytest.mark.faults
def test_an_artifact_cut_short_is_named(artifact, tmp_path):
    import shutil

    copy = shutil.copytree(artifact, tmp_path / "cut")
    weights = copy / "final.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    result = qkgeom("score", str(copy))
    assert result.returncode == 1
    assert "truncated or damaged" in result.stderr
    assert "final.safetensors" in result.stderr


@pytest.mark.faults
def test_a_disk_that_is_full_leaves_no_half_file(bert, tmp_path):
    import resource
    import subprocess
    import sys

    from project import ROOT

    for target in ("artifact", "scores"):
        verb = (
            ["extract", str(bert), "-o", str(tmp_path / "x")] if target == "artifact" else ["score", str(bert), "-o", "s.csv"]
        )
        result = subprocess.run(
            [sys.executable, "-m", "qkgeom", *verb],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**__import__("os").environ, "PYTHONPATH": str(ROOT / "workflow"), "PYTHONDONTWRITEBYTECODE": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200)),
        )
        assert result.returncode == 1, result.stderr
        assert "cannot write" in result.stderr
        assert "Traceback" not in result.stderr
        # but what the next extraction goes on with, hidden
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and ".final.safetensors" not in path.name]


@pytest.mark.faults
def test_a_results_folder_that_is_a_file_is_named(bert, tmp_path):
    (tmp_path / "results").write_text("")
    result = qkgeom("extract", str(bert), "-o", str(tmp_path / "results/models/x"))
    assert result.returncode == 1
    assert "cannot write" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.faults
def test_a_model_with_nan_is_scored_where_it_can_be(tmp_path):
    tensors = bert_tensors()
    tensors["bert.encoder.layer.2.attention.self.query.weight"][0, 0] = np.inf
    table = json.loads(qkgeom("score", str(write_checkpoint(tmp_path, tensors, bert_config())), "--json").stdout)
    assert [row["status"] for row in table] == ["ok", "ok", "not_finite"]
    assert table[2]["symmetry"] is None
