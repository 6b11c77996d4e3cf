"""The pages and plots of audits."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from saywhy.audits.audit import Audit, AuditResult, Plot, audits
from saywhy.cli import app
from saywhy.errors import UserError
from saywhy.reports.audit_pages import write_pages
from saywhy.reports.results_page import results_page
from saywhy.viz.tables import Table

pytest.importorskip("matplotlib")

AUDITS = ("image-ablation", "word-ablation", "localisation", "specificity", "hallucination", "risk", "sanity")
MODELS = {"flickr8k-ada-lstm-vgg16": ("ada-lstm", "vgg16"), "flickr8k-mh-fc": ("mh-fc", "efficientnet-lite2")}
METHODS = ("lrp", "gradcam", "guided-gradcam", "guided-backprop", "gradient-input", "attention", "random")
QUALITY = dict(zip(METHODS, (0.32, 0.25, 0.27, 0.24, 0.2, 0.22, 0.1), strict=True))
MISSING = {"value": None, "low": None, "high": None, "n": 0}
OTHER_STATISTICS = ("attention entropy", "probability", "image share")
FREQUENT = ["man", "dog", "woman", "shirt", "boy", "people", "girl", "water", "street", "ball", "background", "beach"]


def estimate(value: float, width: float = 0.03, n: int = 1200) -> dict[str, Any]:
    return {"value": value, "low": value - width, "high": value + width, "n": n}


def by_method(scale: float = 1.0, base: float = 0.0, methods=METHODS, **options: Any) -> dict[str, dict[str, Any]]:
    return {method: estimate(base + scale * QUALITY.get(method, 0.15), **options) for method in methods}


def transposed(**columns: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """From estimates by column and method to estimates by method and column."""
    methods = next(iter(columns.values()))
    return {method: {key: column[method] for key, column in columns.items()} for method in methods}


def image_ablation() -> dict[str, Any]:
    steps = [0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0]
    shapes = {
        "deletion": lambda step, quality: 0.95 * math.exp(-step * 12 * quality) * (1 - step) + 0.05,
        "insertion": lambda step, quality: 0.05 + 0.95 * (1 - math.exp(-step * 14 * quality) * (1 - step)),
    }
    curves = {
        name: {
            method: {
                "curve": [shape(step, quality) for step in steps],
                "area": estimate(sum(shape(step, quality) for step in steps) / 7),
            }
            for method, quality in QUALITY.items()
        }
        for name, shape in shapes.items()
    }
    methods = transposed(
        no_longer_generated=by_method(), probability_drop=by_method(0.8), share_dropped=by_method(0.9, 0.5)
    )
    return {
        **{"words": 2318, "patches": 20, "patch_size": 8, "methods": methods},
        "curves": {"words": 500, "fractions": steps, **curves},
    }


def word_ablation() -> dict[str, Any]:
    names = ("lrp", "gradient", "gradient-input", "attention", "last", "random")

    def part(words: int, scale: float) -> dict[str, Any]:
        drops, shares = by_method(scale, methods=names), by_method(scale + 0.1, 0.5, names)
        return {"words": words, "methods": transposed(probability_drop=drops, share_dropped=shares)}

    return {"object_words": part(371, 0.6), "stop_words": part(1168, 0.4)}


def localisation(heads: bool = False) -> dict[str, Any]:
    names = (*METHODS, "uniform")
    methods = transposed(
        **{"positive": by_method(0.9, 0.25, names), "negative": by_method(0.5, 0.2, names)},
        **{"pointing": by_method(1.2, 0.3, names), "pointing_negative": by_method(0.5, 0.2, names)},
    )
    for method in ("gradcam", "attention"):
        methods[method] |= {"negative": MISSING, "pointing_negative": MISSING}
    kinds, sizes = ("people", "clothing", "bodyparts", "animals", "vehicles", "scene", "other"), (5, 10, 20, 40)
    by_kind = {kind: group(0.15 + 0.05 * number) for number, kind in enumerate(kinds)}
    by_size = {f"under {size} %": group(size / 100) for size in sizes} | {"40 % and more": group(0.55)}
    best = transposed(best=by_method(1.1, 0.3), mean=by_method(0.8, 0.2), all=by_method(0.9, 0.25))
    return {
        **{"words": 1911, "methods": methods, "by_kind": by_kind, "by_size": by_size},
        "heads": {"words": 400, "heads": 8, "methods": best} if heads else None,
        "skipped": {"no phrase": 120, "box outside the crop": 3},
    }


def specificity() -> dict[str, Any]:
    words = {"inside": (0.8, 0.5), "highest": (0.8, 0.6), "over_function_word": (0.6, -0.1), "drop": (1.0, 0.0)}
    pairs = {"margin": (0.9, 0.0), "margin_highest": (1.0, 0.1), "right_order": (0.6, 0.6), "spec": (0.5, 0.0)}
    pairs |= {"two_words": (-1.0, 0.8), "two_words_positive": (-1.0, 0.6)}
    methods = (*METHODS[:-1], "lrp-why", "lrp-seen", "lrp-features", "lrp-apart", "lrp-centred")
    columns = {key: by_method(*line, methods=methods) for key, line in (words | pairs).items()}
    return {"words": 812, "pairs": 230, "area": estimate(0.3), "methods": transposed(**columns)}


def group(area: float) -> dict[str, Any]:
    methods = by_method(0.6, area, (*METHODS, "uniform"), width=0.04)
    return {"words": 273, "area": estimate(area, 0.01), "methods": methods}


def hallucination(gate: str = "1 − β") -> dict[str, Any]:
    def part(words: int, made_up: int, base: float) -> dict[str, Any]:
        scales = {"quantile 5 %": 0.5, "quantile 50 %": 0.4, "max": -0.3, "mean": 0.45}
        statistics = transposed(**{name: by_method(scale, base, METHODS[:-1]) for name, scale in scales.items()})
        others = {name: estimate(base + 0.02 * i) for i, name in enumerate((gate, *OTHER_STATISTICS))}
        return {"words": words, "made_up": made_up, "statistics": statistics, "other_statistics": others}

    by_word = [
        {"word": word, "generated": 300 - 13 * n, "made_up": 20 + (7 * n) % 50} for n, word in enumerate(FREQUENT)
    ]
    frequent = {"lemmas": FREQUENT, **part(1520, 402, 0.46)}
    return {"frequent_words": frequent, "all_words": part(2318, 707, 0.48), "by_word": by_word}


def risk() -> dict[str, Any]:
    features = ("log p", "log p of synonyms", "log p of any object", "entropy", "log p without image", "image share")
    features += ("low relevance", "negative relevance", "attention entropy", "beta", "position")
    bins = [[0.05 + number / 10, 0.04 + 0.09 * number, 600 - 60 * number] for number in range(10)]
    return {
        "fitted_on": {"split": "dev", "images": 1000, "words": 2290, "made_up": 690},
        **{"words": 2318, "made_up": 707, "auc": estimate(0.768), "ece": 0.0214, "calibration": bins},
        "weights": {feature: 0.9 * (-1) ** i / (i + 1) for i, feature in enumerate(features)},
        "single_feature_auc": {feature: estimate(0.72 - 0.02 * i) for i, feature in enumerate(features)},
        "cross_validated": {"auc": 0.771, "ece": 0.019},
    }


def sanity() -> dict[str, Any]:
    blocks = [f"encoder's features.{number}" for number in (24, 17, 7, 0)]
    methods = METHODS[:-1]
    randomised = [
        {"down_to": stage, "methods": {m: estimate(0.95 - (0.6 + QUALITY[m]) * number / 5) for m in methods}}
        for number, stage in enumerate(("decoder", *blocks), 1)
    ]
    agreement = {one: {other: 1 - 6 * abs(QUALITY[one] - QUALITY[other]) for other in methods} for one in methods}
    others = {"constant_shift": (0.5, 0.8), "translated": (0.4, 0.7), "two_words": (1.0, 0.3)}
    return {
        **{"altered": {"images": 200, "words": 400}, "randomised": randomised, "agreement": agreement},
        **{key: by_method(*line) for key, line in others.items()},
    }


def result(name: str, model: str, **changes: Any) -> dict[str, Any]:
    """The contents of a results file."""
    captioner, encoder = MODELS.get(model, ("soft-attention", "efficientnet-lite2"))
    bodies = {
        **{"image-ablation": image_ablation, "word-ablation": word_ablation, "risk": risk, "sanity": sanity},
        "specificity": specificity,
        "localisation": lambda: localisation(heads=captioner == "mh-fc"),
        "hallucination": lambda: hallucination("1 − β" if captioner == "ada-lstm" else "β"),
    }
    checks = [
        {"claim": "lrp does better than random", "holds": True, "difference": estimate(0.221)},
        {"claim": "lrp does better than attention", "holds": False, "difference": estimate(-0.0123, 0.02)},
        {"claim": "gradcam has a sign", "holds": None, "difference": MISSING},
    ]
    head = {"audit": name, "model": model, "captioner": captioner, "encoder": encoder, "data": "flickr8k"}
    head |= {"split": "test", "images": 1000, "caption_words": 10432, "decoding": "beam5,length0.7,max20"}
    head |= {"composite": "by-stride", "seconds": 31.2, "device": "x86_64 CPU", "threads": 2}
    head |= {"versions": {"saywhy": "0.2.0"}, "commit": "0123456789ab+", "checks": checks, "not_applicable": None}
    return {**head, **bodies[name](), **changes}


def all_results(models=tuple(MODELS)) -> list[dict[str, Any]]:
    return [result(name, model) for model in models for name in AUDITS]


def write_results(folder: Path, *bodies: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for body in bodies:
        stem = re.sub(r"\W+", "-", f"{body['model']}-{body['audit']}")
        (folder / f"audit-{stem}.json").write_text(json.dumps(body))
    return folder


@pytest.fixture
def pages(tmp_path: Path):
    """Write the pages of some results, and return their texts by file name."""

    def write(*bodies: dict[str, Any], out: str = "pages") -> dict[str, str]:
        folder = write_results(tmp_path / "results", *bodies)
        return {path.name: path.read_text() for path in write_pages(folder, tmp_path / out)}

    return write


@pytest.fixture(scope="module")
def all_pages(tmp_path_factory) -> dict[str, str]:
    """The pages and plots of all audits of both models."""
    folder = write_results(tmp_path_factory.mktemp("audits"), *all_results())
    return {path.name: path.read_text() for path in write_pages(folder, folder / "pages")}


def row(text: str, first: str) -> list[str]:
    """The cells after the first of the first row that starts with it."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_every_audit_has_a_page_with_every_model_and_links_to_all_plots(all_pages):
    assert {name for name in all_pages if name.endswith(".md")} == {f"{name}.md" for name in AUDITS}
    for name in AUDITS:
        text = all_pages[f"{name}.md"]
        assert re.findall(r"^## (flickr8k-.*)$", text, re.MULTILINE) == [*MODELS]
        linked = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
        assert linked
        assert set(linked) == {file for file in all_pages if file.startswith(name) and file.endswith(".svg")}
        assert "Generated by `saywhy results` from results/audit-*.json; do not edit." in text


def test_all_rows_of_a_table_have_the_same_number_of_cells(all_pages):
    for name, text in all_pages.items():
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE) if name.endswith(".md") else ():
            assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_a_hand_written_readme_is_kept(pages, tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "README.md").write_text("hand-written")
    assert "README.md" not in pages(result("risk", "m"))
    assert (tmp_path / "pages" / "README.md").read_text() == "hand-written"


def test_a_number_has_its_interval_and_its_count_of_words(pages):
    text = pages(result("image-ablation", "m"))["image-ablation.md"]
    assert row(text, "Grad-CAM") == ["0.250 [0.22, 0.28]", "0.200 [0.17, 0.23]", "0.725 [0.69, 0.76]", "1,200"]
    assert "2,318 object words; 20 patches of 8 × 8 pixels masked." in text


def test_a_narrow_interval_has_three_digits(pages):
    body = result("image-ablation", "m")
    body["methods"]["gradcam"]["no_longer_generated"] = estimate(0.25, 0.004)
    assert row(pages(body)["image-ablation.md"], "Grad-CAM")[0] == "0.250 [0.246, 0.254]"


def test_the_best_value_is_bold_if_higher_or_lower_is_better(pages):
    files = pages(result("image-ablation", "m"), result("localisation", "m"))
    best = ("0.320 [0.29, 0.35]", "0.256 [0.23, 0.29]", "0.788 [0.76, 0.82]")
    assert row(files["image-ablation.md"], "LRP")[:3] == [f"**{cell}**" for cell in best]
    assert files["image-ablation.md"].count("**") == 2 * (3 + 2)  # and two areas
    lrp = row(files["localisation.md"], "LRP")
    assert [cell.startswith("**") for cell in lrp] == [True, False, True, False, False, False]


def test_small_areas_are_better_for_deletion_and_large_ones_for_insertion(pages):
    body = result("image-ablation", "m")
    for name in ("deletion", "insertion"):
        body["curves"][name]["lrp"]["area"] = estimate(0.001)
    areas = pages(body)["image-ablation.md"].split("Areas under the curves")[1]
    assert [cell.startswith("**") for cell in row(areas, "LRP")] == [True, False, False]


def test_values_that_are_equal_to_three_digits_are_both_bold(pages):
    body = result("image-ablation", "m")
    body["methods"]["gradcam"]["no_longer_generated"] = estimate(0.32001)
    text = pages(body)["image-ablation.md"]
    assert row(text, "LRP")[0] == row(text, "Grad-CAM")[0] == "**0.320 [0.29, 0.35]**"


def test_a_missing_value_is_a_dash(pages):
    text = pages(result("localisation", "m"))["localisation.md"]
    assert [row(text, "Grad-CAM")[column] for column in (1, 3)] == ["–", "–"]
    assert not re.search(r"\b(None|nan|null)\b", text)


def test_the_rules_of_lrp_are_named_only_where_the_risk_reads_relevance(pages):
    rules = {"composite": "epsilon-plus"}
    without = {name: weight for name, weight in risk()["weights"].items() if name != "image share"}
    read, unread = result("risk", "reads", **rules), result("risk", "does-not", **rules, weights=without)
    text = pages(read, unread)["risk.md"]
    assert re.findall(r"^## ((?:reads|does).*)$", text, re.MULTILINE) == ["does-not", "reads, epsilon-plus rules"]
    assert row(text, "reads")[-3] == "epsilon-plus"
    assert row(text, "does-not")[-3] == "–"


def test_pages_are_written_even_if_all_values_are_missing(pages):
    def emptied(part: Any) -> Any:
        if isinstance(part, dict):
            return MISSING if part.keys() == MISSING.keys() else {key: emptied(value) for key, value in part.items()}
        return [emptied(value) for value in part] if isinstance(part, list) else part

    files = pages(*map(emptied, all_results(["m"])))
    assert row(files["image-ablation.md"], "LRP") == ["–"] * 4
    assert not any(re.search(r"\b(None|nan|null)\b", text) for name, text in files.items() if name.endswith(".md"))


def test_a_model_to_which_the_audit_does_not_apply_has_the_reason_and_no_plot(pages):
    reason = {"audit": "localisation", "model": "flickr8k-mh-fc", "not_applicable": "its regions are oracle boxes"}
    files = pages(result("localisation", "flickr8k-ada-lstm-vgg16"), reason)
    assert files["localisation.md"].count("flickr8k-mh-fc") == 1
    assert "## flickr8k-mh-fc\n\nNot applicable: its regions are oracle boxes\n" in files["localisation.md"]
    assert not any("mh-fc" in name for name in files)


def test_an_audit_that_applies_to_no_model_has_a_page_without_plots(pages):
    body = {"audit": "localisation", "model": "m", "not_applicable": "no boxes"}
    assert [*pages(body)] == ["localisation.md"]


def test_checks_have_one_row_per_claim_and_one_column_per_model(all_pages):
    checks = all_pages["risk.md"].split("## Checks")[1]
    assert row(checks, "claim") == [*MODELS]
    assert row(checks, "LRP does better than random") == ["✓ +0.221 [0.191, 0.251]"] * len(MODELS)
    assert row(checks, "LRP does better than attention") == ["✗ −0.012 [−0.032, 0.008]"] * len(MODELS)
    assert row(checks, "Grad-CAM has a sign") == ["– –"] * len(MODELS)


def test_the_page_of_hallucination_has_the_published_numbers(pages):
    published = pages(result("hallucination", "m"))["hallucination.md"].split("## Published, for comparison")[1]
    assert row(published, "LRP") == ["**0.6022**", "**0.5821**", "0.5168", "0.5798"]
    assert row(published, "Grad-CAM")[3] == "**0.5857**"
    assert "0.6005" in published


def test_only_models_with_several_heads_have_a_table_of_heads(pages):
    text = pages(result("localisation", "flickr8k-mh-fc"))["localisation.md"]
    assert "Each of the 8 heads alone, 400 words" in text
    assert "heads" not in pages(result("localisation", "m"), out="other")["localisation.md"].split("## m")[1]


def test_pages_do_not_depend_on_the_order_of_files_and_fields(all_pages, pages, monkeypatch):
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: reversed([*glob(self, pattern)]))
    bodies = [dict(reversed(body.items())) for body in reversed(all_results())]
    for body in bodies:
        if "methods" in body:
            body["methods"] = dict(reversed(body["methods"].items()))
    assert pages(*bodies) == all_pages


HOSTILE = "<img src=x onerror=alert(1)>|`a` [b](http://c) *d*"


@pytest.mark.parametrize("name", AUDITS)
def test_a_model_name_with_markup_is_escaped(name, pages):
    body = result(name, HOSTILE, split=HOSTILE, data=HOSTILE, not_applicable=None)
    files = pages(body, {"audit": name, "model": "other", "not_applicable": HOSTILE})
    text = files[f"{name}.md"]
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)>" in text
    assert not re.search(r"(?<!\\)\]\(http", text)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table
    for file, svg in files.items():
        assert re.fullmatch(r"[\w.-]+", file)
        if file.endswith(".svg"):
            assert "img" not in {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}


def test_plots_are_well_formed_no_wider_than_a_page_and_without_a_date(all_pages):
    plots = {name: text for name, text in all_pages.items() if name.endswith(".svg")}
    assert len(plots) == 5 + 6 * len(MODELS)
    for name, text in plots.items():
        root = ElementTree.fromstring(text)
        assert float(root.get("width", "").removesuffix("pt")) * 96 / 72 <= 900, name
        assert "dc:date" not in text


def test_plots_ignore_the_users_matplotlib_settings_and_keep_them(pages):
    import matplotlib

    expected = pages(result("risk", "m"))
    with matplotlib.rc_context({"font.size": 20.0, "axes.facecolor": "pink"}):
        assert pages(result("risk", "m"), out="other") == expected
        assert matplotlib.rcParams["font.size"] == 20.0


def test_the_colour_of_lrp_is_on_every_plot_of_methods_and_on_no_other(all_pages):
    without_methods = ("sanity-agreement", "hallucination-words", "risk")
    for name, text in all_pages.items():
        if name.endswith(".svg"):
            assert ("#d55e00" in text) == (not name.startswith(without_methods)), name


def test_without_matplotlib_the_error_names_the_extra_and_nothing_is_written(pages, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=re.escape("plots need matplotlib: pip install 'saywhy[audit]'")):
        pages(result("risk", "m"))
    assert not (tmp_path / "pages").exists()


REQUIRED = {
    "image-ablation": ("model", "methods", "words", "decoding"),
    "word-ablation": ("audit", "object_words", "stop_words"),
    "localisation": ("methods", "words", "device"),
    "hallucination": ("frequent_words", "all_words"),
    "risk": ("calibration", "fitted_on", "single_feature_auc", "auc"),
    "sanity": ("randomised", "altered"),
    "specificity": ("methods", "words", "pairs", "area"),
}


@pytest.mark.parametrize("name", AUDITS)
def test_a_damaged_file_is_named_in_one_line(name, pages, tmp_path):
    path = write_results(tmp_path / "results") / f"audit-damaged-{name}.json"
    text = json.dumps(result(name, "damaged"))
    incomplete = [
        {key: value for key, value in result(name, "damaged").items() if key != field} for field in REQUIRED[name]
    ]
    for damaged in (text[:-20], "", "[]", "{}", '"text"', *map(json.dumps, incomplete)):
        path.write_text(damaged)
        with pytest.raises(UserError, match=re.escape(path.name)) as raised:
            pages(result(name, "complete"))
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "pages").exists()


def test_a_file_that_only_the_comparison_cannot_draw_is_named(pages, tmp_path):
    body = result("image-ablation", "damaged")
    body["methods"]["lrp"]["no_longer_generated"]["high"] = "a lot"
    with pytest.raises(UserError, match=r"audit-damaged-image-ablation.json: damaged results file"):
        pages(result("image-ablation", "a"), body, result("image-ablation", "z"))


@pytest.mark.parametrize("field", [{"pictures": 1000}, {"left_out": None}])
def test_a_results_file_of_version_0_1_is_refused_in_one_line(field, pages):
    with pytest.raises(
        UserError, match=r"audit-m-risk.json: written by saywhy 0\.1, .*; run the audit again"
    ) as raised:
        pages({"audit": "risk", "model": "m", **field})
    assert "\n" not in str(raised.value)


def test_an_unknown_audit_is_reported_with_the_most_similar_name(pages, tmp_path):
    folder = write_results(tmp_path / "results")
    (folder / "audit-m-new.json").write_text('{"audit": "localization", "model": "m"}')
    with pytest.raises(UserError, match=r'audit-m-new.json: unknown audit .* did you mean "localisation"'):
        pages()


def test_a_folder_without_results_names_the_command_that_writes_them(tmp_path):
    with pytest.raises(UserError, match="no audits; `saywhy audit NAME"):
        write_pages(tmp_path, tmp_path / "pages")


def test_an_audit_of_another_package_has_a_page_with_its_tables_and_plots(pages, monkeypatch):
    class CaptionLength(Audit):
        title, description = "Caption length", "How long are captions?"

        def run(self, context, evidence):
            raise NotImplementedError

        def tables(self, body):
            return [Table(("words",), [(body["words"],)], caption="Mean length.")]

        def summary(self, body):
            return self.tables(body)[0]

        def plots(self, results: list[AuditResult]) -> list[Plot]:
            return [Plot("", "Lengths", lambda: self._draw([result.body["words"] for result in results]))]

        def model_plots(self, body):
            return [Plot("bars", "Length", lambda: self._draw([body["words"]]))]

        def _draw(self, words):
            from matplotlib.figure import Figure

            figure = Figure()
            figure.subplots().bar(range(len(words)), words)
            return figure

    monkeypatch.setattr(audits, "_entries", dict(audits._entries))
    monkeypatch.setattr(audits, "_modules", dict(audits._modules))
    audits.register("caption-length")(CaptionLength)
    body = {**result("risk", "m"), "audit": "caption-length", "words": 9}
    files = pages(body, {**body, "model": "n"})
    assert sorted(files) == [
        *("caption-length-bars-m.svg", "caption-length-bars-n.svg", "caption-length.md", "caption-length.svg")
    ]
    text = files["caption-length.md"]
    assert text.startswith("# Caption length\n")
    assert text.count("Mean length.\n\n| words |\n| --- |\n| 9 |\n") == 2


def scored(folder: Path) -> Path:
    scores = {"bleu": [66.0, 48.0, 34.0, 24.0], "bleu_no_penalty": [67.0, 49.0, 35.0, 25.0], "meteor": 22.0}
    scores |= {"rouge_l": 46.0, "cider": 60.0, "n": 1000, "signature": "tok:ptb"}
    body = {"model": "soft", "data": "flickr8k", "split": "test", "scores": scores, "captions_per_second": 8.0}
    folder.mkdir(exist_ok=True)
    (folder / "soft.json").write_text(json.dumps(body))
    return folder


def test_the_page_of_scores_ignores_audits_even_damaged_ones(tmp_path):
    folder = scored(tmp_path / "results")
    expected = results_page(folder)
    (folder / "audit-m-risk.json").write_text(json.dumps(result("risk", "m")))
    (folder / "audit-m-sanity.json").write_text("{")
    assert results_page(folder) == expected


def test_the_command_writes_both_kinds_of_pages_or_only_the_audits(tmp_path):
    folder, out, pages = scored(tmp_path / "results"), tmp_path / "results.md", tmp_path / "docs" / "audits"
    (folder / "audit-m-risk.json").write_text(json.dumps(result("risk", "m")))
    both = CliRunner().invoke(app, ["results", str(folder), "--out", str(out), "--audits", str(pages)])
    assert both.exit_code == 0
    assert "# Results" in out.read_text()
    assert sorted(path.name for path in pages.iterdir()) == ["risk-calibration-m.svg", "risk.md"]
    (folder / "soft.json").unlink()
    only_audits = CliRunner().invoke(app, ["results", str(folder), "--audits", str(tmp_path / "alone")])
    assert (only_audits.exit_code, only_audits.output) == (0, "")
    assert (tmp_path / "alone" / "risk.md").exists()


def test_the_pages_in_the_docs_are_generated_from_the_results(tmp_path):
    root = Path(__file__).parents[2]
    docs = {path.name: path.read_text() for path in (root / "docs" / "audits").glob("*.md") if path.stem != "README"}
    written = write_pages(root / "results", tmp_path)
    assert {path.name: path.read_text() for path in written if path.suffix == ".md"} == docs
