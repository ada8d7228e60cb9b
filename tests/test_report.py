"""The report: what it says of a run, and how the page behaves in a browser."""

import base64
import csv
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from datetime import datetime
from html import unescape

import pandas as pd
import pytest

import browser as browser_tools
from project import Project
from qkgeom import steps
from qkgeom.audit.findings import Finding, Part
from qkgeom.audit.report import _part as json_of_part
from qkgeom.errors import QkgeomError
from qkgeom.figures import _scores_against_size, render
from qkgeom.origins import Origin
from qkgeom.report.markup import caption, first_sentence, html
from qkgeom.report.plots import FEW_LAYERS, panels
from trained_models import Run, all_runs, write_training

WIDTHS, SCHEMES = (390, 1280), ("light", "dark")
OPEN_ALL = "document.querySelectorAll('details').forEach(each => { each.open = true })"
DRAWN = "return [...document.querySelectorAll('[data-panel]')].every(each => each.querySelector('svg'))"


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A project that has run once, with a model that is missing, and the figures of training runs beside its own."""
    folder = tmp_path_factory.mktemp("report") / "sp ace's"
    project = Project.create(folder)
    project.add_model(model="gone", uri="file:models/gone")
    project.run("--config", "allow_missing=true")
    results = folder / "results/mini"
    inputs = write_training(tmp_path_factory.mktemp("trained"), all_runs())
    for name in ("dynamics", "dynamics_layers"):
        render(name, inputs, results / "figures" / name)
    done = project.qkgeom("report", "results/mini", code=folder)
    assert done.returncode == 0, done.stderr
    return project


@pytest.fixture(scope="session")
def page(run):
    return (run.folder / "results/mini/report.html").read_text()


def text_of(page: str, section: str) -> str:
    """The words of a section or article."""
    found = re.search(rf'<(section|article) id="{section}".*?</\1>', page, re.DOTALL)[0]
    found = re.sub(r"<script.*?</script>", "", found, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", found)).split())


def test_it_says_what_ran_when_and_with_what(page):
    facts = text_of(page, "run")
    assert "Preset mini" in facts
    assert re.search(r"Began \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} Ended \d{4}-", facts)
    assert "Scores computed on cpu" in facts
    assert re.search(r"Packages torch \d\S+, transformers \d", facts)
    assert re.search(r"requirements.txt, sha256 [0-9a-f]{64}", facts)


def test_it_names_what_is_missing_and_why(page):
    assert "2 of 3 models extracted and scored" in page
    missing = text_of(page, "missing")
    assert "gone no such file or folder" in missing
    assert "python -m qkgeom retry && snakemake --cores 4 --config preset=mini" in missing
    assert re.search(r'<tr id="model-gone">.*?<td>failed</td>', page, re.DOTALL)


def test_every_figure_is_there_with_caption_numbers_models_and_command(run, page):
    for path in (run.folder / "results/mini/figures").glob("*.csv"):
        name = path.stem
        article = re.search(rf'<article id="figure-{name}".*?</article>', page, re.DOTALL)[0]
        words = text_of(page, f"figure-{name}")
        assert path.with_suffix(".md").read_text().split("\n\n")[2].strip() in words
        numbers = re.search(rf'download="{name}.csv" href="data:text/csv;base64,([^"]+)"', article)[1]
        assert base64.b64decode(numbers) == path.read_bytes()
        picture = re.search(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]{20,})"', article)
        assert base64.b64decode(picture[1]) == path.with_suffix(".png").read_bytes()
    assert "The 2 models behind it" in text_of(page, "figure-scores_language")
    assert "file:models/enc" in text_of(page, "figure-scores_language")
    assert "python -m qkgeom figure scores_language --summary results/mini/" in text_of(page, "figure-scores_language")


def test_the_command_of_a_figure_makes_it_again(run, page, tmp_path):
    command = re.search(r"python -m qkgeom (figure scores_language .*?) --output", text_of(page, "figure-scores_language"))[1]
    again = run.qkgeom(*command.split(), "--output", str(tmp_path / "again"))
    assert again.returncode == 0, again.stderr
    made = run.folder / "results/mini/figures/scores_language"
    for ending in (".csv", ".png", ".pdf"):
        assert (tmp_path / "again").with_suffix(ending).read_bytes() == made.with_suffix(ending).read_bytes()


def test_tables_and_run_times_are_there(run, page):
    for path in (run.folder / "results/mini/tables").glob("*.csv"):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        shown = [row.get("label") or row["model"] for row in rows]  # published_vs_reproduced has models of the paper
        assert shown and all(name in text_of(page, f"table-{path.stem}") for name in shown)
    times = text_of(page, "times")
    assert re.search(r"extract 3 \d+\.\d", times), "three models"
    assert "python -m qkgeom score results/models/tiny-enc" in times
    assert "report" not in [step.verb for step in steps.read_steps(run.folder / "results/mini")]


def test_every_model_has_its_source_and_the_digest_of_its_manifest(run, page):
    row = re.search(r'<tr id="model-tiny-dec">.*?</tr>', page, re.DOTALL)[0]
    assert "file:models/dec" in row
    assert re.search(r"model.safetensors, \d+ bytes", row)
    shown = re.search(r'title="([0-9a-f]{64})"', row)[1]
    assert shown == hashlib.sha256((run.folder / "results/models/tiny-dec/manifest.json").read_bytes()).hexdigest()


def test_nothing_of_the_page_comes_from_elsewhere(page):
    # what a browser would fetch: sources and styles; links to other pages are none
    page = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    fetched = re.findall(r'<(?:img|script|link|iframe|source)\b[^>]*?\b(?:src|href)="([^"]*)"', page)
    assert fetched
    assert all(address.startswith("data:") for address in fetched)


def test_the_report_loads_no_torch_and_no_transformers(run):
    code = (
        "import sys; sys.argv[1:] = ['report', 'results/mini', '-o', sys.argv[1]]\n"
        "from qkgeom.cli import app\n"
        "try: app()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'altair' in sys.modules\n"
        "sys.exit(', '.join({'torch', 'transformers', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-c", code, str(run.folder / "again.html")]
    environment = {"PYTHONPATH": str(run.folder / "workflow"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=run.folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.faults
def test_a_folder_without_a_run_is_an_error_and_leaves_no_page(run):
    (run.folder / "results/smoke").mkdir(exist_ok=True)
    done = run.qkgeom("report", "results/smoke", code=run.folder)
    assert done.returncode == 1
    assert "there is no finished run here" in done.stderr
    assert "snakemake --cores 4 --config preset=smoke" in done.stderr
    assert not list((run.folder / "results/smoke").iterdir())


@pytest.mark.faults
def test_a_figure_whose_picture_is_gone_is_an_error_that_names_it(run, tmp_path):
    copy = run.copy(tmp_path / "copy")
    (copy.folder / "results/mini/figures/heads.png").unlink()
    before = (copy.folder / "results/mini/report.html").read_bytes()
    done = copy.qkgeom("report", code=copy.folder)
    assert done.returncode == 1
    assert "heads.png" in done.stderr
    assert (copy.folder / "results/mini/report.html").read_bytes() == before


def test_an_audit_is_shown(run, tmp_path):
    copy = run.copy(tmp_path / "copy")
    (audit := copy.folder / "results/mini/audit").mkdir(exist_ok=True)
    finding = {"where": "scores.csv", "item": "tiny-enc", "found": "1 < 2", "expected": "2", "fix": "score again"}
    record = {"schema": 1, "preset": "mini", "verdict": "mismatch", "options": {}, "findings": [finding]}
    of_model = Part(
        "model", "tiny-enc", findings=[Finding(**finding)], unchecked=["no weights"], notes=["a | b"], counts={"tensors": 6}
    )
    of_table = Part("table", "scores", follows=["results/models/tiny-enc/scores.csv"])
    record |= {"models": [json_of_part(of_model)], "figures": [], "tables": [json_of_part(of_table)]}
    (audit / "audit.json").write_text(json.dumps(record))
    assert copy.qkgeom("report", code=copy.folder).returncode == 0
    words = text_of((copy.folder / "results/mini/report.html").read_text(), "audit")
    assert "Verdict: mismatch ; models: 1, figures: 0, tables: 1" in words
    assert "scores.csv tiny-enc 1 < 2 2 score again" in words
    assert "models tiny-enc mismatch tensors: 6 no weights; a | b tables" in words
    assert "tables scores mismatch follows from results/models/tiny-enc/scores.csv: mend that first" in words
    assert "newer than the audit" not in words
    os.utime(audit / "audit.json", (1e9, 1e9))
    assert copy.qkgeom("report", code=copy.folder).returncode == 0
    words = text_of((copy.folder / "results/mini/report.html").read_text(), "audit")
    assert "files are newer than the audit, such as scores.csv" in words
    (audit / "audit.json").write_text("{}")
    done = copy.qkgeom("report", code=copy.folder)
    assert done.returncode == 1
    assert "the record of the audit cannot be read" in done.stderr


def test_a_log_and_a_benchmark_are_a_step(tmp_path):
    (tmp_path / "logs/score").mkdir(parents=True)
    (tmp_path / "benchmarks/score").mkdir(parents=True)
    first = "2026-03-01 10:00:00,123 INFO qkgeom 0.1.0, python 3.11.7: score results/models/a --device auto\n"
    more = "2026-03-01 10:00:00,200 INFO scoring a on cuda:0\n"
    (tmp_path / "logs/score/a.log").write_text(first + more)
    (tmp_path / "benchmarks/score/a.tsv").write_text("s\th:m:s\tmax_rss\n9.0\t0:00:09\t1\n2.5\t0:00:02\tNA\n")
    (tmp_path / "logs/score/killed.log").write_text("")
    step, killed = steps.read_steps(tmp_path)
    assert (step.verb, step.name, step.seconds, step.memory_mb) == ("score", "a", 2.5, None)
    assert step.command == "python -m qkgeom score results/models/a --device auto"
    assert step.devices == ("cuda:0",)
    assert step.began.replace(tzinfo=None) == datetime(2026, 3, 1, 10)
    assert (step.ended - step.began).total_seconds() == 2.5
    assert (killed.command, killed.began, killed.ended) == ("", None, None)


def test_a_caption_is_read_as_it_was_written():
    assert caption("# heads (not in the paper)\n\n![heads](heads.png)\n\nAll heads: 1 < 2. More.\n") == (
        "not in the paper",
        "All heads: 1 < 2. More.",
    )
    assert first_sentence("All 95 % of them (e.g. these), and no more. Then others.") == "All 95 % of them (e.g."
    with pytest.raises(QkgeomError, match="a figure's caption cannot be read"):
        caption("no title\n\ntext")


def test_markdown_becomes_an_accessible_table_and_its_html_stays_text():
    shown = html("A <b> caption.\n\n| Model | Loss |\n|:--|--:|\n| a | 1 |\n", "table x")
    assert "&lt;b&gt;" in shown
    assert '<div class="scroll" tabindex="0" role="region" aria-label="table x"><table>' in shown
    assert shown.count('<th scope="col"') == 2


def origin(model: str) -> Origin:
    about = {"label": f"Label of {model}", "group": "language", "role": "encoder", "objective": "none", "folder": None}
    source = {"uri": f"hf:org/{model}", "revision": "commit 0123", "manifest_sha256": "0" * 64, "made_by": {}}
    return Origin(model=model, **about, status="ok", reason="", layers="0-5", snapshots=1, **source)


SIZED = {
    "model": ["a", "b", "c"],
    "role": ["encoder", "decoder", "decoder"],
    "n_params": [1e6, 2e6, None],
    **{f"{score}_{q}": [0.1, 0.2, 0.3] for score in ("symmetry", "directionality_excess") for q in ("median", "q1", "q3")},
}


def drawn(panel: dict) -> str:
    """The panel as Vega draws it."""
    import vl_convert

    return vl_convert.vegalite_to_svg({**panel, "width": 300})


def test_points_of_a_figure_know_their_models():
    shown = panels(pd.DataFrame(SIZED), [origin("a"), origin("b"), origin("other")])
    assert len(shown) == 2
    datasets = shown[0]["datasets"].values()
    [about] = [rows for rows in datasets if "uri" in rows[0]]
    assert {row["model"] for row in about} == {"a", "b"}, "and no others"
    linked = re.findall(r'xlink:href="[^"]*#model-(\w+)"', drawn(shown[0]))
    assert linked == ["a", "b"], "the third is of unknown size"


@pytest.mark.parametrize("name", ["dynamics", "dynamics_layers"])
def test_figures_of_training_have_panels_with_a_point_per_number(tmp_path, name):
    inputs = write_training(tmp_path, all_runs())
    render(name, inputs, tmp_path / name)
    numbers = pd.read_csv(tmp_path / f"{name}.csv")
    shown = panels(numbers, [])
    per_score = 1 if name == "dynamics" else 2
    assert len(shown) == 2 * per_score
    points = sum(drawn(panel).count('aria-roledescription="point"') for panel in shown)
    assert points == numbers[
        [column for column in numbers if column.endswith(("symmetry_median", "excess_median"))]
    ].notna().sum().sum() or (points == numbers[["symmetry", "directionality_excess"]].notna().sum().sum())


def test_published_medians_are_drawn_where_there_are_some_here():
    scores = ("symmetry", "directionality_excess")
    table = pd.DataFrame({"model": ["a", "b"], "role": ["encoder", "decoder"], "verdict": ["agrees", "not reproduced here"]})
    for score in scores:
        table[f"{score}_median_published"], table[f"{score}_median_here"] = [0.1, 0.2], [None, None]
    assert panels(table, []) == []
    for score in scores:
        table[f"{score}_median_here"] = [0.11, None]
    assert [drawn(panel).count('aria-roledescription="point"') for panel in panels(table, [origin("a")])] == [1, 1]


def test_markers_are_open_and_marked_as_in_the_picture():
    sized = {**SIZED, "n_params": [1e6, 2e9, 3e9], "n_layers": [6, 2, 3], "verdict": ["untrained", "not random", "untrained"]}
    shown = panels(pd.DataFrame(sized), [])
    for svg in map(drawn, shown):
        assert svg.count('fill="var(--paper)"') == 1
        assert f">open: fewer than {FEW_LAYERS} layers</text>" in svg
        assert svg.count(">†</text>") == 2
        assert ">1B</text>" in svg and "G</text>" not in svg, "billions, as in the picture"
    assert FEW_LAYERS == _scores_against_size.FEW_LAYERS
    sized |= {"n_layers": [6, 6, 3], "verdict": ["not random"] * 3}
    for svg in map(drawn, panels(pd.DataFrame(sized), [])):
        assert not [mark for mark in ("var(--paper)", "open:", "†") if mark in svg]


def test_published_medians_have_the_markers_of_the_picture():
    table = pd.DataFrame({"model": ["a", "b"], "role": ["encoder", "decoder"], "defect": [None, "no_transpose"]})
    table["symmetry_median_published"], table["symmetry_median_here"] = [0.1, 0.2], [0.1, 0.3]
    table["symmetry_published_way"] = [None, 0.9]
    [panel] = panels(table, [])
    svg = drawn(panel)
    assert svg.count('fill="var(--paper)"') == 1
    assert svg.count('aria-roledescription="point"') == 3, "two models, and one read the published way"
    assert "read the published way: 0.900" in svg


@pytest.mark.parametrize("state", ["diverged", "failed"])
def test_a_role_that_has_no_score_has_no_panel_of_its_layers(tmp_path, state):
    render("dynamics_layers", write_training(tmp_path, [Run(status=state), Run("decoder")]), tmp_path / "stem")
    shown = panels(pd.read_csv(tmp_path / "stem.csv"), [])
    assert [panel["title"] for panel in shown] == ["decoder: layers 0 (pale) to 3"] * 2


def test_a_score_that_no_model_has_has_no_panel():
    table = pd.DataFrame(
        {"model": ["a"], "role": ["encoder"], "symmetry_median_here": [0.1], "symmetry_median_published": [0.1]}
    )
    table["directionality_excess_median_here"], table["directionality_excess_median_published"] = [0.1], [None]
    assert len(panels(table, [])) == 1
    assert panels(pd.DataFrame({**SIZED, "n_params": [None] * 3}), []) == []


def test_figures_of_other_kinds_have_no_panels():
    assert panels(pd.DataFrame({"row": [1], "value": [0.1]}), []) == []
    assert panels(pd.DataFrame(columns=list(SIZED)), []) == []


# As an archive -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def crate(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("crate") / "crate.zip"
    done = run.qkgeom("crate", "results/mini", "-o", str(path), "--agent", "A Reader", code=run.folder)
    assert done.returncode == 0, done.stderr
    return path


def read_crate(crate) -> tuple[zipfile.ZipFile, dict[str, dict]]:
    opened = zipfile.ZipFile(crate)
    graph = json.loads(opened.read("ro-crate-metadata.json"))["@graph"]
    return opened, {entity["@id"]: entity for entity in graph}


def test_the_crate_is_a_valid_workflow_run_crate(crate, tmp_path):
    validation = pytest.importorskip("crate_validation", reason="needs roc-validator")
    assert validation.issues(crate, "workflow-run-crate", "REQUIRED", tmp_path) == []
    recommended = validation.issues(crate, "workflow-run-crate", "RECOMMENDED", tmp_path)
    no_public_address = {  # of the project: this holds for whoever runs a copy of it
        "process-run-crate-0.5_3.2: The Application SHOULD have a url",
        "process-run-crate-0.5_5.1: The SoftwareApplication id SHOULD be an absolute URI",
        "ro-crate-1.1_31.2: The organization SHOULD have a URL.",
        "ro-crate-1.1_30.1: The Person SHOULD have an ORCID",
    }
    assert set(recommended) <= no_public_address


def test_the_validation_can_fail(crate, tmp_path):
    validation = pytest.importorskip("crate_validation", reason="needs roc-validator")
    broken = tmp_path / "broken.zip"
    with zipfile.ZipFile(crate) as whole, zipfile.ZipFile(broken, "w") as copy:
        for entry in whole.infolist():
            content = whole.read(entry)
            if entry.filename == "ro-crate-metadata.json":
                content = content.replace(b'"instrument"', b'"agent2"')
            copy.writestr(entry, content)
    found = validation.issues(broken, "workflow-run-crate", "REQUIRED", tmp_path)
    assert any("instrument" in issue for issue in found)


def test_the_crate_holds_the_workflow_its_lock_and_what_came_out_and_no_weights(run, crate):
    opened, entities = read_crate(crate)
    names = set(opened.namelist())
    assert {"Snakefile", "config.yaml", "CITATION.cff", "envs/requirements.txt", "workflow/models.tsv"} <= names
    assert {f"results/mini/figures/{path.name}" for path in (run.folder / "results/mini/figures").iterdir()} <= names
    assert {"results/models/tiny-enc/scores.csv", "results/models/gone/manifest.json", "results/mini/report.html"} <= names
    assert not [name for name in names if name.endswith((".safetensors", ".pyc"))]
    for place in ("results/mini/collected/scores.csv", "results/mini/figures/heads.png", "Snakefile"):
        source = run.folder / place
        assert opened.read(place) == source.read_bytes()
        if place != "Snakefile":
            assert entities[place]["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()


def test_the_crate_says_what_ran_when_on_what(run, crate):
    _, entities = read_crate(crate)
    main = entities["#run"]
    assert main["instrument"] == {"@id": "Snakefile"}
    assert main["startTime"] <= main["endTime"]
    read = {each["@id"] for each in main["object"]}
    assert {"#preset", "config.yaml", "#source-tiny-enc", "#source-gone"} <= read
    assert entities["#source-tiny-dec"]["value"] == "file:models/dec"
    assert "model.safetensors" in entities["#source-tiny-dec"]["description"]
    drawn_by = entities["#figure-scores_language"]
    assert drawn_by["description"].startswith("python -m qkgeom figure scores_language --summary")
    assert {"@id": "results/mini/figures/scores_language.pdf"} in drawn_by["result"]
    assert {"@id": "results/mini/figures/scores_language.pdf"} in main["result"]
    versions = {entity["name"]: entity["softwareVersion"] for entity in entities.values() if "softwareVersion" in entity}
    assert versions["torch"] == importlib.metadata.version("torch")
    assert entities[main["agent"]["@id"]]["name"] == "A Reader"


@pytest.mark.faults
def test_a_crate_of_a_run_without_logs_is_an_error_and_leaves_nothing(run, tmp_path):
    copy = run.copy(tmp_path / "copy")
    shutil.rmtree(copy.folder / "results/mini/logs")
    done = copy.qkgeom("crate", "-o", "out/crate.zip", code=copy.folder)
    assert done.returncode == 1
    assert "nothing says when this run took place" in done.stderr
    assert not (copy.folder / "out").exists()
    done = copy.qkgeom("crate", "-o", "crate.tar", code=copy.folder)
    assert done.returncode == 2


@pytest.mark.faults
def test_a_temporary_folder_without_room_for_a_crate_is_named(run, tmp_path):
    code = (
        "import errno, shutil, sys; sys.argv[1:] = ['crate', 'results/mini', '-o', sys.argv[1]]\n"
        "def full(*_, **__): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "shutil.copytree = full\n"
        "from qkgeom.cli import main; main()"
    )
    (scratch := tmp_path / "scratch").mkdir()
    environment = {"PYTHONPATH": str(run.folder / "workflow"), "PATH": "/usr/bin:/bin", "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", code, str(tmp_path / "out/crate.zip")]
    done = subprocess.run(command, cwd=run.folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a crate cannot be put together" in done.stderr and f"where:    {scratch}" in done.stderr
    assert "No space left on device" in done.stderr and "set TMPDIR" in done.stderr
    assert not [*scratch.iterdir(), *tmp_path.glob("out/*")]


# In a browser ------------------------------------------------------------------------------------------------------------

in_browser = [pytest.mark.browser, browser_tools.needs_selenium, browser_tools.needs_chromium]


def marked(function):
    for mark in in_browser:
        function = mark(function)
    return function


@pytest.fixture(scope="session")
def browser():
    with browser_tools.chromium() as opened:
        yield opened


def show(browser, run, width, scheme):
    """Opens the page with every plot drawn and every detail open."""
    browser.console(), browser.requests()  # of what was open before
    browser.open(run.folder / "results/mini/report.html", width, scheme)
    browser.run(OPEN_ALL)
    for number in range(browser.run("return document.querySelectorAll('[data-panel]').length")):
        browser.run("document.querySelectorAll('[data-panel]')[arguments[0]].scrollIntoView()", number)
        browser.wait(f"return document.querySelectorAll('[data-panel]')[{number}].querySelector('svg')")


CONTRASTS = """
const parsed = text => text.match(/[\\d.]+/g).map(Number);
const channel = value => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const luminance = text => {
  const [r, g, b] = parsed(text).slice(0, 3).map(channel);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  const colour = getComputedStyle(element).backgroundColor;
  return (parsed(colour)[3] ?? 1) === 1 ? colour : behind(element.parentElement);
};
const texts = [...document.body.querySelectorAll(':not(script):not(style):not(noscript)')].filter(
  each => [...each.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()) && each.checkVisibility());
return texts.map(each => {
  const style = getComputedStyle(each);
  const ink = luminance(each.closest('svg') ? style.fill : style.color), paper = luminance(behind(each));
  return [each.textContent, (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)];
});
"""


@marked
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_in_a_browser(browser, run, width, scheme):
    from axe_core_python.selenium import Axe

    show(browser, run, width, scheme)
    assert browser.console() == []
    assert browser.requests() == [(run.folder / "results/mini/report.html").as_uri()]
    assert browser.run("return document.documentElement.scrollWidth") == width
    dark = browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 29)"
    assert dark == (scheme == "dark")
    pictures = browser.run("return [...document.images].map(each => [each.alt.length, each.naturalWidth])")
    assert len(pictures) == len(list((run.folder / "results/mini/figures").glob("*.png"))) == 7
    assert all(alt > 20 and wide > 500 for alt, wide in pictures)
    contrasts = browser.run(CONTRASTS)
    assert len(contrasts) > 200
    assert [text for text, contrast in contrasts if contrast < 4.5] == []
    violations = Axe().run(browser.driver)["violations"]
    assert [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in violations] == []


@marked
@pytest.mark.parametrize("width", WIDTHS)
def test_hovering_over_a_point_shows_its_model_and_clicking_goes_there(browser, run, width):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    show(browser, run, width, "light")
    browser.run("document.querySelector('#figure-scores_language').scrollIntoView()")
    points = browser.driver.find_elements(By.CSS_SELECTOR, "#figure-scores_language .mark-symbol.role-mark path")
    assert len(points) == 4, "two models, two scores"
    ActionChains(browser.driver).move_to_element(points[1]).perform()  # which may lie over the first
    browser.wait("return document.querySelector('#vg-tooltip-element.visible')")
    told = browser.run("return document.querySelector('#vg-tooltip-element').innerText")
    for part in ("tiny-dec", "file:models/dec", "0-2", "model.safetensors", "ok", "median over layers"):
        assert part in told
    box = browser.run("return document.querySelector('#vg-tooltip-element').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0
    assert box["right"] <= width
    ActionChains(browser.driver).click(points[1]).perform()
    browser.wait("return location.hash === '#model-tiny-dec'")
    assert browser.run("return document.querySelector('tr:target').innerText").startswith("tiny-dec")


@marked
def test_the_keyboard_reaches_every_link_and_every_box_that_scrolls(browser, run):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    show(browser, run, 390, "light")
    reachable = "[...document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')].filter(e => e.checkVisibility())"
    count = browser.run(f"window.all = {reachable}; window.scrollTo(0, 0); document.activeElement.blur(); return all.length")
    browser.run("window.met = []; document.addEventListener('focusin', event => met.push(all.indexOf(event.target)))")
    for _ in range(count):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
    assert browser.run("return met.length") == count > 40
    assert browser.run("return met") == list(range(count)), "in the page's order, the skip link first"
    assert browser.run("return all[0].textContent") == "Skip to the content"


def test_the_page_has_one_heading_per_level_in_order(page):
    levels = [int(level) for level in re.findall(r"<h([1-6])\b", page)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for landmark in ("header", "nav", "main", "footer"):
        assert page.count(f"<{landmark}>") + page.count(f"<{landmark} ") == 1


def test_the_parts_of_the_page_are_part_of_the_reports_digest(run, tmp_path):
    copy = run.copy(tmp_path / "copy")
    for name in ("dynamics", "dynamics_layers"):
        for path in (copy.folder / "results/mini/figures").glob(f"{name}.*"):
            path.unlink()
    copy.run("--config", "allow_missing=true")
    assert copy.planned("--config", "allow_missing=true") == {}
    for name in ("page.html", "page.css", "page.js", "plots.py"):
        path = f"workflow/qkgeom/report/{name}"
        before = (copy.folder / path).read_text()
        copy.write(path, before + "\n")
        assert copy.planned("--config", "allow_missing=true") == {"report": {"-"}}, name
        copy.write(path, before)
