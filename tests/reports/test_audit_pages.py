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

from saywhy.cli import app
from saywhy.errors import UserError
from saywhy.reports.audit_pages import write_pages
from saywhy.reports.results_page import results_page
from saywhy.viz.plots import spread_out

pytest.importorskip("matplotlib")

AUDITS = ("image-ablation", "word-ablation", "localisation", "hallucination", "risk", "sanity")
MODELS = {"flickr8k-ada-lstm-vgg16": ("ada-lstm", "vgg16"), "flickr8k-mh-fc": ("mh-fc", "efficientnet-lite2")}
METHODS = ("lrp", "gradcam", "guided-gradcam", "guided-backprop", "gradient-input", "attention", "random")
GOOD = dict(zip(METHODS, (0.32, 0.25, 0.27, 0.24, 0.2, 0.22, 0.1), strict=True))
NOTHING = {"value": None, "low": None, "high": None, "n": 0}


def estimate(value: float, width: float = 0.03, n: int = 1200) -> dict[str, Any]:
    return {"value": value, "low": value - width, "high": value + width, "n": n}


def each(scale: float = 1.0, base: float = 0.0, methods=METHODS, **more: Any) -> dict[str, dict[str, Any]]:
    return {method: estimate(base + scale * GOOD.get(method, 0.15), **more) for method in methods}


def columns(**named: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """From estimates by column and method to those by method and column."""
    return {method: {key: column[method] for key, column in named.items()} for method in next(iter(named.values()))}


def image_ablation() -> dict[str, Any]:
    steps = [0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0]
    curves = {
        name: {
            method: {
                "curve": [at(step, good) for step in steps],
                "area": estimate(sum(at(s, good) for s in steps) / 7),
            }
            for method, good in GOOD.items()
        }
        for name, at in (
            ("deletion", lambda step, good: 0.95 * math.exp(-step * 12 * good) * (1 - step) + 0.05),
            ("insertion", lambda step, good: 0.05 + 0.95 * (1 - math.exp(-step * 14 * good) * (1 - step))),
        )
    }
    methods = columns(vanished=each(), drop=each(0.8), dropped=each(0.9, 0.5))
    return {
        **{"words": 2318, "patches": 20, "patch": 8, "methods": methods},
        "curves": {"words": 500, "fractions": steps, **curves},
    }


def word_ablation() -> dict[str, Any]:
    names = ("lrp", "gradient", "gradient-input", "attention", "last", "random")
    return {
        "object": {"words": 371, "methods": columns(drop=each(0.6, methods=names), dropped=each(0.7, 0.5, names))},
        "stop": {"words": 1168, "methods": columns(drop=each(0.4, methods=names), dropped=each(0.6, 0.5, names))},
    }


def localisation(heads: bool = False) -> dict[str, Any]:
    names = (*METHODS, "uniform")
    methods = columns(
        **{"positive": each(0.9, 0.25, names), "negative": each(0.5, 0.2, names)},
        **{"pointing": each(1.2, 0.3, names), "pointing_negative": each(0.5, 0.2, names)},
    )
    for method in ("gradcam", "attention"):
        methods[method] |= {"negative": NOTHING, "pointing_negative": NOTHING}
    kinds, sizes = ("people", "clothing", "bodyparts", "animals", "vehicles", "scene", "other"), (5, 10, 20, 40)
    by_kind = {kind: group(0.15 + 0.05 * number) for number, kind in enumerate(kinds)}
    by_size = {f"under {size} %": group(size / 100) for size in sizes} | {"40 % and more": group(0.55)}
    best = columns(best=each(1.1, 0.3), mean=each(0.8, 0.2), all=each(0.9, 0.25))
    return {
        **{"words": 1911, "methods": methods, "by_kind": by_kind, "by_size": by_size},
        "heads": {"words": 400, "heads": 8, "methods": best} if heads else None,
        "skipped": {"no phrase": 120, "box outside the crop": 3},
    }


def group(area: float) -> dict[str, Any]:
    return {"words": 273, "area": estimate(area, 0.01), "methods": each(0.6, area, (*METHODS, "uniform"), width=0.04)}


def hallucination(beta: str = "1 − β") -> dict[str, Any]:
    def part(words: int, made_up: int, base: float) -> dict[str, Any]:
        scales = {"quantile 5 %": 0.5, "quantile 50 %": 0.4, "max": -0.3, "mean": 0.45}
        statistics = columns(**{name: each(scale, base, METHODS[:-1]) for name, scale in scales.items()})
        others = {name: estimate(base + 0.02 * place) for place, name in enumerate((beta, *OTHERS))}
        return {"words": words, "made_up": made_up, "statistics": statistics, "others": others}

    by_word = [{"word": word, "said": 300 - 13 * n, "made_up": 20 + (7 * n) % 50} for n, word in enumerate(FREQUENT)]
    frequent = {"list": FREQUENT, **part(1520, 402, 0.46)}
    return {"frequent": frequent, "every": part(2318, 707, 0.48), "by_word": by_word}


OTHERS = ("attention entropy", "probability", "image share")
FREQUENT = ["man", "dog", "woman", "shirt", "boy", "people", "girl", "water", "street", "ball", "background", "beach"]


def risk() -> dict[str, Any]:
    facts = ("log p", "log p of its names", "log p of any object", "entropy", "log p unseen", "image share")
    facts += ("relevance low", "relevance against", "attention entropy", "beta", "position")
    bins = [[0.05 + number / 10, 0.04 + 0.09 * number, 600 - 60 * number] for number in range(10)]
    return {
        "fitted_on": {"split": "dev", "images": 1000, "words": 2290, "made_up": 690},
        **{"words": 2318, "made_up": 707, "auc": estimate(0.768), "ece": 0.0214, "calibration": bins},
        "weights": {fact: 0.9 * (-1) ** place / (place + 1) for place, fact in enumerate(facts)},
        "alone": {fact: estimate(0.72 - 0.02 * place) for place, fact in enumerate(facts)},
        "cross_validated": {"auc": 0.771, "ece": 0.019},
    }


def sanity() -> dict[str, Any]:
    stages = (
        "decoder",
        "encoder's features.24",
        "encoder's features.17",
        "encoder's features.7",
        "encoder's features.0",
    )
    randomised = [
        {"down_to": stage, "methods": {m: estimate(0.95 - (0.6 + g) * place / 5) for m, g in list(GOOD.items())[:-1]}}
        for place, stage in enumerate(stages, 1)
    ]
    agreement = {one: {other: 1 - 6 * abs(GOOD[one] - GOOD[other]) for other in METHODS[:-1]} for one in METHODS[:-1]}
    named = {"constant_shift": each(0.5, 0.8), "moved": each(0.4, 0.7), "two_words": each(1.0, 0.3)}
    return {"altered": {"images": 200, "words": 400}, "randomised": randomised, **named, "agreement": agreement}


def audit(name: str, model: str, **more: Any) -> dict[str, Any]:
    captioner, encoder = MODELS.get(model, ("soft-attention", "efficientnet-lite2"))
    bodies = {
        **{"image-ablation": image_ablation, "word-ablation": word_ablation, "risk": risk, "sanity": sanity},
        "localisation": lambda: localisation(heads=captioner == "mh-fc"),
        "hallucination": lambda: hallucination("1 − β" if captioner == "ada-lstm" else "β"),
    }
    claims = [
        {"claim": "LRP does better than random", "holds": True, "difference": estimate(0.221)},
        {"claim": "LRP does better than attention", "holds": False, "difference": estimate(-0.0123, 0.02)},
        {"claim": "Grad-CAM has a sign", "holds": None, "difference": NOTHING},
    ]
    head = {"audit": name, "model": model, "captioner": captioner, "encoder": encoder, "data": "flickr8k"}
    head |= {"split": "test", "images": 1000, "caption_words": 10432, "decoding": "beam5,length0.7,max20"}
    head |= {"composite": "epsilon-plus", "objects": "0123abcd", "seconds": 31.2, "device": "x86_64 CPU", "threads": 2}
    head |= {"versions": {"saywhy": "0.1.0"}, "commit": "0123456789ab+", "checks": claims, "not_applicable": None}
    return {**head, **bodies[name](), **more}


def every_audit(models=tuple(MODELS)) -> list[dict[str, Any]]:
    return [audit(name, model) for model in models for name in AUDITS]


@pytest.fixture
def made(tmp_path: Path):
    """The pages of these audits, by the name of their files."""

    def make(*audits: dict[str, Any], out: str = "pages") -> dict[str, str]:
        folder = tmp_path / "results"
        folder.mkdir(exist_ok=True)
        for body in audits:
            (folder / f"audit-{body['model']}-{body['audit']}.json").write_text(json.dumps(body))
        return {path.name: path.read_text() for path in write_pages(folder, tmp_path / out)}

    return make


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> dict[str, str]:
    """The pages and plots of all audits of both models."""
    folder = tmp_path_factory.mktemp("audits")
    for body in every_audit():
        (folder / f"audit-{body['model']}-{body['audit']}.json").write_text(json.dumps(body))
    return {path.name: path.read_text() for path in write_pages(folder, folder / "pages")}


def row(text: str, first: str) -> list[str]:
    """The cells of the first row that begins so, without its first."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_every_audit_has_a_page_with_every_model_and_plots_that_are_there(everything):
    files = everything
    assert {name for name in files if name.endswith(".md")} == {f"{name}.md" for name in AUDITS}
    for name in AUDITS:
        text = files[f"{name}.md"]
        assert re.findall(r"^## (flickr8k-.*)$", text, re.MULTILINE) == [*MODELS]
        shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
        assert shown
        assert set(shown) == {file for file in files if file.startswith(name) and file.endswith(".svg")}
        assert "Made by `saywhy results` from results/audit-*.json; do not edit." in text


def test_every_table_has_as_many_cells_in_each_row(everything):
    for name, text in everything.items():
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE) if name.endswith(".md") else ():
            assert len({line.count("|") for line in block.splitlines()}) == 1, block


def test_a_readme_written_by_hand_is_left_alone(made, tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "README.md").write_text("by hand")
    assert "README.md" not in made(audit("risk", "m"))
    assert (tmp_path / "pages" / "README.md").read_text() == "by hand"


def test_a_number_has_its_interval_and_its_words(made):
    text = made(audit("image-ablation", "m"))["image-ablation.md"]
    assert row(text, "Grad-CAM") == ["0.250 [0.22, 0.28]", "0.200 [0.17, 0.23]", "0.725 [0.69, 0.76]", "1,200"]
    assert "2,318 object words; the 20 patches of 8 × 8 pixels masked" in text


def test_an_interval_too_narrow_for_two_digits_has_three(made):
    body = audit("image-ablation", "m")
    body["methods"]["gradcam"]["vanished"] = estimate(0.25, 0.004)
    assert row(made(body)["image-ablation.md"], "Grad-CAM")[0] == "0.250 [0.246, 0.254]"


def test_the_best_of_a_column_is_bold_where_one_end_is_better(made):
    files = made(audit("image-ablation", "m"), audit("localisation", "m"))
    assert row(files["image-ablation.md"], "LRP")[:3] == [f"**{cell}**" for cell in THE_BEST]
    assert files["image-ablation.md"].count("**") == 2 * (3 + 2)  # and the two areas
    lrp = row(files["localisation.md"], "LRP")
    assert [cell.startswith("**") for cell in lrp] == [True, False, True, False, False]


THE_BEST = ("0.320 [0.29, 0.35]", "0.256 [0.23, 0.29]", "0.788 [0.76, 0.82]")


def test_a_small_area_is_the_better_one_of_deletion_and_a_large_one_of_insertion(made):
    body = audit("image-ablation", "m")
    for name in ("deletion", "insertion"):
        body["curves"][name]["lrp"]["area"] = estimate(0.001)
    areas = made(body)["image-ablation.md"].split("Areas under the curves")[1]
    assert [cell.startswith("**") for cell in row(areas, "LRP")] == [True, False, False]


def test_values_that_look_alike_are_both_bold(made):
    body = audit("image-ablation", "m")
    body["methods"]["gradcam"]["vanished"] = estimate(0.32001)
    text = made(body)["image-ablation.md"]
    assert row(text, "LRP")[0] == row(text, "Grad-CAM")[0] == "**0.320 [0.29, 0.35]**"


def test_what_could_not_be_had_is_a_dash(made):
    text = made(audit("localisation", "m"))["localisation.md"]
    assert [row(text, "Grad-CAM")[place] for place in (1, 3)] == ["–", "–"]
    assert not re.search(r"\b(None|nan|null)\b", text)


def test_null_everywhere_still_makes_a_page(made):
    def emptied(part: Any) -> Any:
        if isinstance(part, dict):
            return NOTHING if part.keys() == NOTHING.keys() else {key: emptied(value) for key, value in part.items()}
        return [emptied(value) for value in part] if isinstance(part, list) else part

    files = made(*map(emptied, every_audit(["m"])))
    assert row(files["image-ablation.md"], "LRP") == ["–"] * 4
    assert not any(re.search(r"\b(None|nan|null)\b", text) for name, text in files.items() if name.endswith(".md"))


def test_a_model_without_the_audit_says_why_and_has_no_table_or_plot(made):
    without = audit("localisation", "flickr8k-mh-fc")
    without = {key: without[key] for key in ("audit", "model")} | {"not_applicable": "its regions are oracle boxes"}
    files = made(audit("localisation", "flickr8k-ada-lstm-vgg16"), without)
    assert files["localisation.md"].count("flickr8k-mh-fc") == 1
    assert "## flickr8k-mh-fc\n\nLeft out: its regions are oracle boxes\n" in files["localisation.md"]
    assert not any("mh-fc" in name for name in files)


def test_an_audit_that_all_models_leave_out_is_a_page_without_plots(made):
    body = {"audit": "localisation", "model": "m", "not_applicable": "no boxes"}
    assert [*made(body)] == ["localisation.md"]


def test_checks_say_whether_they_hold_a_claim_with_all_its_models(everything):
    checks = everything["risk.md"].split("## Checks")[1]
    assert row(checks, "claim") == [*MODELS]
    assert row(checks, "LRP does better than random") == ["✓ +0.221 [0.191, 0.251]"] * len(MODELS)
    assert row(checks, "LRP does better than attention") == ["✗ −0.012 [−0.032, 0.008]"] * len(MODELS)
    assert row(checks, "Grad-CAM has a sign") == ["– –"] * len(MODELS)


def test_the_papers_numbers_stand_beside_those_of_hallucination(made):
    files = made(audit("hallucination", "m"))
    published = files["hallucination.md"].split("## Published, for comparison")[1]
    assert row(published, "LRP") == ["**0.6022**", "**0.5821**", "0.5168", "0.5798"]
    assert row(published, "Grad-CAM")[3] == "**0.5857**"
    assert "0.6005" in published


def test_only_a_model_with_heads_shows_them(made):
    text = made(audit("localisation", "flickr8k-mh-fc"))["localisation.md"]
    assert "Of the 8 heads one by one, 400 words" in text
    assert "heads" not in made(audit("localisation", "m"), out="other")["localisation.md"].split("## m")[1]


def test_pages_are_the_same_in_whatever_order_files_are_read_and_made_again(everything, made, monkeypatch):
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: reversed([*glob(self, pattern)]))
    shuffled = [dict(reversed(body.items())) for body in reversed(every_audit())]
    for body in shuffled:
        if "methods" in body:
            body["methods"] = dict(reversed(body["methods"].items()))
    assert made(*shuffled) == everything


def test_plots_are_well_formed_no_wider_than_a_page_and_without_a_date(everything):
    plots = {name: text for name, text in everything.items() if name.endswith(".svg")}
    assert len(plots) == 4 + 6 * len(MODELS)
    for name, text in plots.items():
        root = ElementTree.fromstring(text)
        assert float(root.get("width", "").removesuffix("pt")) * 96 / 72 <= 900, name
        assert "dc:date" not in text


def test_plots_do_not_depend_on_the_users_settings_and_leave_them_alone(made):
    import matplotlib

    first = made(audit("risk", "m"))
    with matplotlib.rc_context({"font.size": 20.0, "axes.facecolor": "pink"}):
        assert made(audit("risk", "m"), out="other") == first
        assert matplotlib.rcParams["font.size"] == 20.0


def test_the_colour_of_lrp_is_on_every_plot_of_methods_and_on_no_other(everything):
    without = ("sanity-agreement", "hallucination-words", "risk")
    for name, text in everything.items():
        if name.endswith(".svg"):
            assert ("#d55e00" in text) == (not name.startswith(without)), name


def test_without_matplotlib_it_is_said_what_to_do_and_nothing_is_written(made, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=re.escape("plots need matplotlib: pip install 'saywhy[audit]'")):
        made(audit("risk", "m"))
    assert not (tmp_path / "pages").exists()


@pytest.mark.parametrize("name", AUDITS)
def test_a_damaged_file_is_named_in_one_line(name, made, tmp_path):
    (tmp_path / "results").mkdir()
    path = tmp_path / "results" / f"audit-broken-{name}.json"
    whole = json.dumps(audit(name, "broken"))
    without = [{key: value for key, value in audit(name, "broken").items() if key != left} for left in NEEDED[name]]
    for text in (whole[:-20], "", "[]", "{}", '"text"', *map(json.dumps, without)):
        path.write_text(text)
        with pytest.raises(UserError, match=re.escape(path.name)) as raised:
            made(audit(name, "whole"))
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "pages").exists()


NEEDED = {
    "image-ablation": ("model", "methods", "words", "decoding"),
    "word-ablation": ("audit", "object", "stop"),
    "localisation": ("methods", "words", "device"),
    "hallucination": ("frequent", "every"),
    "risk": ("calibration", "fitted_on", "alone", "auc"),
    "sanity": ("randomised", "altered"),
}


def test_an_unknown_audit_is_named_with_those_that_are_known(made, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "audit-m-new.json").write_text('{"audit": "localization", "model": "m"}')
    with pytest.raises(UserError, match=r'audit-m-new.json: unknown audit .* did you mean "localisation"'):
        made()


def test_a_folder_without_audits_says_what_writes_them(tmp_path):
    with pytest.raises(UserError, match="no audits; `saywhy audit NAME"):
        write_pages(tmp_path, tmp_path / "pages")


def test_labels_make_room_for_one_another_and_keep_their_order():
    heights = spread_out([0.0, 0.01, 0.02, 0.9], 0.1)
    assert heights == pytest.approx([-0.09, 0.01, 0.11, 0.9])
    assert spread_out([], 0.1) == []


def scored(folder: Path) -> Path:
    scores = {"bleu": [66.0, 48.0, 34.0, 24.0], "bleu_no_penalty": [67.0, 49.0, 35.0, 25.0], "meteor": 22.0}
    scores |= {"rouge_l": 46.0, "cider": 60.0, "n": 1000, "signature": "tok:ptb"}
    body = {"model": "soft", "data": "flickr8k", "split": "test", "scores": scores, "captions_per_second": 8.0}
    folder.mkdir(exist_ok=True)
    (folder / "soft.json").write_text(json.dumps(body))
    return folder


def test_audits_are_not_taken_for_scores_even_if_damaged(tmp_path):
    folder = scored(tmp_path / "results")
    before = results_page(folder)
    (folder / "audit-m-risk.json").write_text(json.dumps(audit("risk", "m")))
    (folder / "audit-m-sanity.json").write_text("{")
    assert results_page(folder) == before


def test_the_command_writes_both_or_the_audits_alone(tmp_path):
    folder, out, pages = scored(tmp_path / "results"), tmp_path / "results.md", tmp_path / "docs" / "audits"
    (folder / "audit-m-risk.json").write_text(json.dumps(audit("risk", "m")))
    done = CliRunner().invoke(app, ["results", str(folder), "--out", str(out), "--audits", str(pages)])
    assert done.exit_code == 0
    assert "# Results" in out.read_text()
    assert sorted(path.name for path in pages.iterdir()) == ["risk-calibration-m.svg", "risk.md"]
    (folder / "soft.json").unlink()
    alone = CliRunner().invoke(app, ["results", str(folder), "--audits", str(tmp_path / "alone")])
    assert (alone.exit_code, alone.output) == (0, "")
    assert (tmp_path / "alone" / "risk.md").exists()


def test_the_pages_in_the_docs_are_made_from_the_results(tmp_path):
    root = Path(__file__).parents[2]
    docs = {path.name: path.read_text() for path in (root / "docs" / "audits").glob("*.md") if path.stem != "README"}
    written = write_pages(root / "results", tmp_path)
    assert {path.name: path.read_text() for path in written if path.suffix == ".md"} == docs
