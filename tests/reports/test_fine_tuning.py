"""Fine-tuning runs and their tables on the page of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from saywhy.errors import UserError
from saywhy.reports.fine_tuning_runs import PLAIN, START, Variant, read_runs
from saywhy.reports.results_page import results_page

HEAD = ["mAP", "recall", "F1", "CHAIR-s", "CHAIR-i", "BLEU-4", "METEOR", "CIDEr", "seeds"]


def relevance(weights: str = "lrp", cross_entropy: float = 0.5) -> dict[str, Any]:
    return {"weights": weights, "cross_entropy": cross_entropy}


def reward(**keys: float) -> dict[str, Any]:
    return {"metric": "cider", "samples": 5, "baseline": "others", "weight": 1.0, "temperature": 1.0, **keys}


def run(
    seed: int = 0,
    mean_precision: float | None = 70.0,
    instance: int = 20,
    cider: float = 60.0,
    start: str | None = "digest",
    captioner: str = "ada-lstm",
    **fields: Any,
) -> dict[str, Any]:
    """A file of `evaluate --hallucination --out`; `reward` and `relevance` are tables of its recipe."""
    tables = {name: fields.pop(name, None) for name in ("reward", "relevance")}
    recipe = {"name": "any", "seed": seed, "encoder": {"name": "vgg16"}, "captioner": {"name": captioner}, **tables}
    scores = {"bleu": [66.0, 48.0, 34.0, 24.0], "bleu_no_penalty": [67.0, 49.0, 35.0, 25.0], "meteor": 22.0}
    scores |= {"rouge_l": 46.0, "cider": cider, "n": 1000, "signature": "tok:ptb"}
    chair = {"sentence": {"count": 15, "of": 100}, "instance": {"count": instance, "of": 200}, "objects": "boxes"}
    words = {"map": mean_precision, "recall": 50.0, "f1": 58.0, "words": []}
    hallucination = {"chair": chair, "frequent_words": words, "bad_endings": {"count": 1, "of": 100}}
    training = {"recipe": recipe, "start": start if any(table is not None for table in tables.values()) else None}
    identity = {"model": "any", "data": "flickr8k", "split": "test", "decoding": "beam5"}
    return {**identity, "scores": scores, "hallucination": hallucination, "training": training, **fields}


@pytest.fixture
def write(tmp_path: Path):
    """Writes runs as numbered files and returns the folder of results."""

    def write_runs(*runs: dict[str, Any]) -> Path:
        (tmp_path / "fine-tuning").mkdir(exist_ok=True)
        for number, content in enumerate(runs):
            (tmp_path / "fine-tuning" / f"{number}.json").write_text(json.dumps(content))
        return tmp_path

    return write_runs


def tables(text: str) -> dict[str, dict[str, list[str]]]:
    """The rows of each table of the section, by its title and their first cell."""
    parts = text.split("## Fine-tuning\n")[1].split("\n## ")[0].split("\n### ")[1:]
    found = {}
    for part in parts:
        rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
        found[part.splitlines()[0]] = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
        del found[part.splitlines()[0]]["---"]
    return found


def difference_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("LRP-IFT") and " minus " in line]


@pytest.mark.parametrize(
    ("recipe", "objective", "variant"),
    [
        ({}, "", Variant(START)),
        ({"relevance": relevance(cross_entropy=1)}, "cross-entropy", Variant(PLAIN)),
        ({"relevance": relevance("random", cross_entropy=1.0)}, "cross-entropy", Variant(PLAIN)),
        ({"relevance": relevance()}, "cross-entropy", Variant("lrp")),
        ({"relevance": relevance("random", 0)}, "cross-entropy", Variant("random", 0.0)),
        ({"reward": reward()}, "self-critical training", Variant(PLAIN)),
        ({"reward": reward(hallucination=0.25)}, "self-critical training", Variant(PLAIN, penalty=0.25)),
        ({"reward": {}}, "self-critical training", Variant(PLAIN)),
        ({"reward": reward(), "relevance": relevance("sharpened")}, "self-critical training", Variant("sharpened")),
        ({"reward": reward(), "relevance": relevance("lrp", 1)}, "self-critical training", Variant("lrp")),
        (
            {"reward": reward(weight=0.8), "relevance": relevance("lrp", 1)},
            "self-critical training with weight 0.8",
            Variant("lrp", 1.0),
        ),
    ],
)
def test_the_recipe_says_what_a_run_is(write, recipe, objective, variant):
    (only,) = read_runs(write(run(**recipe)))
    assert (only.objective, only.variant) == (objective, variant)


def test_each_data_set_captioner_and_objective_has_a_table_with_the_start_model(write):
    kinds: tuple[dict[str, Any], ...] = ({}, {"relevance": relevance()}, {"reward": reward()})
    places = [("flickr8k", "mh-fc"), ("coco", "mh-fc"), ("flickr8k", "ada-lstm")]
    runs = [run(data=data, captioner=name, **kind) for kind in kinds for data, name in places]
    found = tables(results_page(write(*runs, run(data="other", captioner="soft"))))
    assert {title: [*rows][1:] for title, rows in found.items()} == {
        "COCO test: MH-FC over VGG-16, cross-entropy": ["start model", "LRP-IFT"],
        "COCO test: MH-FC over VGG-16, self-critical training": ["start model", "plain fine-tuning"],
        "Flickr8k test: Ada-LSTM over VGG-16, cross-entropy": ["start model", "LRP-IFT"],
        "Flickr8k test: Ada-LSTM over VGG-16, self-critical training": ["start model", "plain fine-tuning"],
        "Flickr8k test: MH-FC over VGG-16, cross-entropy": ["start model", "LRP-IFT"],
        "Flickr8k test: MH-FC over VGG-16, self-critical training": ["start model", "plain fine-tuning"],
        "other test: soft over VGG-16, not fine-tuned": ["start model"],
    }


def test_splits_and_decodings_are_not_mixed(write):
    text = results_page(write(run(relevance=relevance(), split="dev"), run(), run(decoding="greedy")))
    assert text.count("| start model |") == 2
    assert [*tables(text)][-1] == "Flickr8k dev: Ada-LSTM over VGG-16, cross-entropy"
    assert "1,000 images, decoding `greedy`." in text


def test_plain_fine_tuning_and_lrp_ift_come_before_controls_and_other_lambdas(write):
    weights = ("unknown", "sharpened", "attention", "gradient-input", "gradient", "random", "lrp")
    runs = [run(relevance=relevance(name)) for name in weights]
    runs += [run(relevance=relevance(cross_entropy=value)) for value in (0.75, 0.25, 0, 1)]
    runs += [run(relevance=relevance("random", 0)), run()]
    (rows,) = tables(results_page(write(*runs))).values()
    controls = ("random signs", "gradient", "gradient × input", "attention", "sharpened", "unknown")
    assert [*rows] == [
        *("model", "start model", "plain fine-tuning", "LRP-IFT"),
        *(f"control: {name}" for name in controls),
        *(f"LRP-IFT, λ = {value}" for value in ("0", "0.25", "0.75")),
        "control: random signs, λ = 0",
    ]


def test_rows_with_a_hallucination_penalty_say_so_and_come_last(write):
    penalties = [reward(hallucination=penalty) for penalty in (1, 0.5, 0)]
    runs = [run(reward=table, relevance=extra) for table in penalties for extra in (None, relevance())]
    (rows,) = tables(results_page(write(*runs, run()))).values()
    assert [*rows][1:4] == ["start model", "plain fine-tuning", "LRP-IFT"]
    assert [*rows][4:6] == ["plain fine-tuning, hallucination penalty 0.5", "LRP-IFT, hallucination penalty 0.5"]
    assert [*rows][6:] == ["plain fine-tuning, hallucination penalty 1", "LRP-IFT, hallucination penalty 1"]


def test_seeds_give_mean_and_deviation_and_their_number(write):
    seeds = [run(seed, 70.0 + seed, 20 + seed, 60.0, relevance=relevance()) for seed in (2, 0, 1)]
    (rows,) = tables(results_page(write(*seeds, run()))).values()
    assert rows["model"] == HEAD
    means = ["71.0 ± 1.0", "50.0 ± 0.0", "58.0 ± 0.0", "15.0 ± 0.0", "10.5 ± 0.5"]
    assert rows["LRP-IFT"] == [*means, "24.0 ± 0.0", "22.0 ± 0.0", "60.0 ± 0.0", "3"]
    assert rows["start model"] == ["70.0", "50.0", "58.0", "15.0", "10.0", "24.0", "22.0", "60.0", "1"]


def test_differences_are_those_of_runs_with_the_same_seed(write):
    lrp = [run(seed, 72.0 + seed, 18, 59.0, relevance=relevance()) for seed in range(3)]
    plain = [run(seed, 70.0 + 2 * seed, 20, 60.0, relevance=relevance(cross_entropy=1)) for seed in (2, 1, 0)]
    random = [run(seed, 72.5, 18, 59.0, relevance=relevance("random")) for seed in (1, 7)]
    text = results_page(write(*lrp, *plain, *random))
    assert difference_lines(text) == [
        "LRP-IFT minus plain fine-tuning (3 seeds): mAP +1.00 ± 1.00, CHAIR-i −1.00 ± 0.00, CIDEr −1.00 ± 0.00; "
        "minus random signs (1 seed): mAP +0.50, CHAIR-i 0.00, CIDEr 0.00."
    ]


def test_runs_from_different_start_models_are_not_paired(write):
    runs = (run(relevance=relevance()), run(start="other", relevance=relevance("sharpened")))
    assert difference_lines(results_page(write(*runs))) == [
        "LRP-IFT minus sharpened: no runs with the same seed and start model."
    ]


def test_differences_compare_runs_with_the_same_penalty_and_the_lambda_of_the_paper(write):
    strict = reward(hallucination=1)
    runs = [run(reward=reward()), run(reward=strict, cider=50.0), run(reward=strict, relevance=relevance())]
    runs += [run(relevance=relevance("lrp", 0)), run(relevance=relevance("random", 0))]
    (line,) = difference_lines(results_page(write(*runs)))
    assert line == (
        "LRP-IFT, hallucination penalty 1, minus plain fine-tuning (1 seed): mAP 0.00, CHAIR-i 0.00, CIDEr +10.00."
    )


def test_a_measure_that_a_run_lacks_is_a_dash(write):
    runs = [run(seed, 70.0 if seed else None, relevance=relevance()) for seed in (0, 1)]
    runs += [run(seed, relevance=relevance(cross_entropy=1)) for seed in (0, 1)]
    text = results_page(write(*runs))
    assert tables(text)["Flickr8k test: Ada-LSTM over VGG-16, cross-entropy"]["LRP-IFT"][0] == "–"
    assert "(2 seeds): mAP –, CHAIR-i 0.00 ± 0.00" in text


def test_the_section_explains_its_rows_and_columns(write):
    text = results_page(write(run(), run(data="coco", relevance=relevance())))
    for words in ("LRP-IFT (LRP-inference fine-tuning)", "λ = 1", "What an image has: boxes.", "± standard deviation"):
        assert words in text
    assert "Bad endings" not in text


def test_fine_tuning_runs_are_in_no_other_table(write):
    folder = write(run(model="tuned", relevance=relevance()))
    (folder / "fine-tuning" / "explored").mkdir()
    (folder / "fine-tuning" / "explored" / "other.json").write_text("not read")
    (folder / "other.json").write_text(json.dumps(run(model="other")))
    text = results_page(folder)
    before, after = text.split("## Fine-tuning")
    assert "| other |" in before
    assert "tuned" not in before.split("## flickr8k test")[1]
    assert "start model |" not in after


def test_without_fine_tuning_runs_there_is_no_section(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(run()))
    assert "Fine-tuning" not in results_page(tmp_path)


def test_markup_in_names_is_escaped(write):
    names = {"data": "a|b", "split": "<i>", "captioner": "*x*", "decoding": "`beam`"}
    text = results_page(write(run(relevance=relevance("<b>|*"), **names)))
    assert "### a\\|b &lt;i>: \\*x\\* over VGG-16, cross-entropy" in text
    assert "| control: &lt;b>\\|\\* |" in text
    assert "decoding `` `beam` ``." in text


def without(content: dict[str, Any], *path: str) -> dict[str, Any]:
    """A copy without the field at this path."""
    copy = json.loads(json.dumps(content))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return copy


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (("data",), 'field "data" is missing'),
        (("hallucination",), "saywhy evaluate --hallucination --out"),
        (("training",), 'field "training" is missing'),
        (("training", "start"), 'field "training.start" is missing'),
        (("training", "recipe"), 'field "training.recipe" is missing'),
        (("training", "recipe", "seed"), 'field "training.recipe.seed" is missing'),
        (("training", "recipe", "captioner"), 'field "training.recipe.captioner" is missing'),
        (("training", "recipe", "encoder", "name"), 'field "training.recipe.encoder.name" is missing'),
        (("training", "recipe", "relevance", "weights"), 'field "training.recipe.relevance.weights" is missing'),
        (("training", "recipe", "relevance", "cross_entropy"), "relevance.cross_entropy"),
    ],
)
def test_a_missing_field_is_named_in_one_line(write, path, problem):
    folder = write(without(run(relevance=relevance()), *path))
    with pytest.raises(UserError, match=problem) as error:
        results_page(folder)
    assert "0.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_value_of_another_type_is_named_in_one_line(write):
    with pytest.raises(UserError, match=r'0\.json: .*field "training.recipe.reward.hallucination" is not a number'):
        results_page(write(run(reward={"hallucination": "much"})))


def test_two_files_of_the_same_run_are_refused(write):
    with pytest.raises(UserError, match=r"1\.json: the same data, .* and seed as .*0\.json; move one"):
        results_page(write(run(relevance=relevance()), run(cider=61.0, relevance=relevance())))
