"""The page of evaluation results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from saywhy.errors import UserError
from saywhy.reports.results_page import results_page

ROOT = Path(__file__).parents[2]


def result(
    seed: int = 0, cider: float = 60.0, name: str = "soft", split: str = "test", **fields: Any
) -> dict[str, Any]:
    scores = {"bleu": [66.0, 48.0, 34.0, 24.0], "bleu_no_penalty": [67.0, 49.0, 35.0, 25.0], "meteor": 22.0}
    scores |= {"rouge_l": 46.0, "cider": cider, "n": 1000, "signature": "tok:ptb"}
    recipe = {"name": name, "seed": seed, "encoder": {"name": "vgg16"}, "preprocessing": {"size": 224}}
    training = {"recipe": recipe, "progress": {"seconds": 120.0}, "device": "NVIDIA GPU", "parameters": 16_000_000}
    speed = {"captions_per_second": 8.0, "device": "x86_64 CPU", "threads": 2, "decoding": "beam5"}
    defaults = {"model": name, "data": "flickr8k", "split": split, "scores": scores, "training": training}
    return {**defaults, **speed, **fields}


def attention(beta_admits: str | None = None, entropy: float = 3.0) -> dict[str, Any]:
    words = [{"word": f"word{n}", "beta": n / 100, "count": 100 + n} for n in range(20)]
    gate = {"mean": 0.42, "least": 10, "lowest": words[:10], "highest": words[:9:-1]} if beta_admits else None
    numbers = {"features": 49.0, "entropy": entropy, "share": 0.77, "change": 0.25, "largest": 0.125}
    return {"words": 5, "heads": 1, **numbers, "gate": gate, "beta_admits": beta_admits}


def exploration(epochs: int = 1, planned: int = 1, **decoding: float) -> dict[str, Any]:
    history = [{"epoch": epoch, "bleu4": 20.0} for epoch in range(epochs, 0, -2)][::-1]
    progress = {"best": 50.0, "seconds": 9.0, "history": history}
    return {
        "description": "half the rate",
        "progress": progress,
        "recipe": {"training": {"epochs": planned}, "decoding": decoding},
    }


@pytest.fixture
def make_page(tmp_path: Path):
    """Writes results, and recipes with these names, and returns the page."""

    def make(*results: dict[str, Any], recipes: dict[str, str] | None = None) -> str:
        for number, content in enumerate(results):
            (tmp_path / "results").mkdir(exist_ok=True)
            (tmp_path / "results" / f"{number}.json").write_text(json.dumps(content))
        for stem, name in (recipes or {}).items():
            (tmp_path / "recipes").mkdir(exist_ok=True)
            (tmp_path / "recipes" / f"{stem}.toml").write_text(f'name = "{name}"\n')
        return results_page(tmp_path / "results")

    return make


def section(text: str, title: str) -> str:
    """The text under this heading, up to the next heading of its level or a higher one."""
    level = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert level, f"no section {title}"
    return re.split(rf"^#{{1,{len(level[1])}}} ", text[level.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def table_rows(text: str) -> dict[str, list[str]]:
    """The rows of the first table, by their first cell."""
    lines = [line for line in re.split(r"\n\n(?!\|)", text[text.index("|") :])[0].splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({len(row) for row in rows}) == 1, "a row with another number of cells"
    return {row[0]: row[1:] for row in rows if set(row[0]) != {"-"}}


def test_a_row_has_all_scores_and_costs(make_page):
    rows = table_rows(section(make_page(result()), "Captioners"))
    assert dict(zip(rows["model"], rows["soft"], strict=True)) == {
        **{"B1": "66.0", "B2": "48.0", "B3": "34.0", "B4": "24.0"},
        **{"B1′": "67.0", "B2′": "49.0", "B3′": "35.0", "B4′": "25.0"},
        **{"METEOR": "22.0", "ROUGE-L": "46.0", "CIDEr": "60.0"},
        **{"par. M": "16.0", "train s": "120", "GPU": "GPU", "cap/s": "8.0 CPU"},
    }


def test_several_seeds_give_mean_and_deviation_and_a_row_each(make_page):
    text = make_page(*(result(seed, cider) for seed, cider in enumerate((60.0, 61.0, 62.0))), result(0, 50.0, "other"))
    assert table_rows(section(text, "Captioners"))["soft"][10] == "61.0 ± 1.0"
    assert table_rows(section(text, "Captioners"))["other"][10] == "50.0"
    lines = [line for line in section(text, "Each seed").splitlines() if line.startswith("| soft |")]
    assert [line.split("|")[2].strip() for line in lines] == ["0", "1", "2"]
    assert all(cider in line for cider, line in zip(("60.00", "61.00", "62.00"), lines, strict=True))
    assert "other" not in section(text, "Each seed")
    assert "over the seeds 0, 1, 2" in text


def test_different_decodings_of_a_model_are_not_averaged(make_page):
    rows = table_rows(section(make_page(result(), result(cider=70.0, decoding="greedy")), "Captioners"))
    assert [rows[f"soft ({decoding})"][10] for decoding in ("greedy", "beam5")] == ["70.0", "60.0"]


def test_the_best_model_comes_first_and_test_before_dev(make_page):
    text = make_page(result(name="worse", cider=50.0), result(name="better"), result(split="dev"))
    assert [*table_rows(section(text, "Captioners"))] == ["model", "better", "worse"]
    assert re.findall(r"^## (flickr8k .*)$", text, re.MULTILINE) == ["flickr8k test", "flickr8k dev"]


def test_the_page_says_how_each_model_was_trained(make_page):
    distilled = result(name="soft-attention-flickr8k")
    distilled["training"]["teachers"] = {"two": "digest", "one": "digest"}
    converted = result(name="flickr8k-mh-fc")
    converted["training"]["recipe"]["encoder"]["weights"] = "vgg16.safetensors"
    unrecorded = {key: value for key, value in result(name="mine").items() if key != "training"}
    names = {"flickr8k-soft-distilled": "soft-attention-flickr8k", "flickr8k-mh-fc": "flickr8k-mh-fc"}
    text = make_page(distilled, converted, unrecorded, result(name="unknown"), recipes=names)
    assert "- soft-attention-flickr8k: `recipes/flickr8k-soft-distilled.toml`; distilled from one, two\n" in text
    assert "- flickr8k-mh-fc: `recipes/flickr8k-mh-fc.toml`; encoder weights from vgg16.safetensors\n" in text
    assert "- mine: its training is not recorded\n" in text
    assert "- unknown: recipe unknown\n" in text
    assert "Signature: `tok:ptb`" in text


def test_different_signatures_name_their_models(make_page):
    other = result(name="other")
    other["scores"]["signature"] = "tok:given|refs:5"
    text = make_page(result(), other)
    assert "Signature of soft: `tok:ptb`" in text
    assert "Signature of other: `tok:given|refs:5`" in text


def test_a_missing_metric_is_a_dash(make_page):
    without_meteor = result()
    without_meteor["scores"]["meteor"] = None
    assert table_rows(section(make_page(without_meteor), "Captioners"))["soft"][8] == "–"


def test_there_is_no_mean_if_the_metric_of_a_seed_is_missing(make_page):
    without_meteor = result(1)
    without_meteor["scores"]["meteor"] = None
    assert table_rows(section(make_page(result(0), without_meteor), "Captioners"))["soft"][8] == "–"


def test_seconds_on_a_shared_gpu_are_marked(make_page):
    alone, shared = result(), result(name="shared")
    shared["training"]["shared_gpu"] = True
    assert "same GPU" not in section(make_page(alone), "Captioners")
    text = section(make_page(alone, shared), "Captioners")
    assert table_rows(text)["shared"][12] == "120 †"
    assert table_rows(text)["soft"][12] == "120"
    assert "† Measured while other runs used the same GPU." in text


def test_models_with_oracle_regions_come_last_and_are_marked(make_page):
    assert "Oracle" not in make_page(result())
    oracle = result(name="mh-fc", cider=90.0, regions={"kind": "boxes", "oracle": True})
    detected = result(name="mh-fc-regions", cider=80.0, regions={"kind": "features", "oracle": False})
    text = section(make_page(oracle, result(), detected), "Captioners")
    assert [*table_rows(text)] == ["model", "mh-fc-regions", "soft", "mh-fc ‡"]
    assert "not comparable with scores on unseen images" in text


def coco(name: str, images: int = 4398, **fields: Any) -> dict[str, Any]:
    content = result(name=name, data="coco", **fields)
    content["scores"]["n"] = images
    return content


def test_results_are_listed_under_the_data_set_they_were_measured_on(make_page):
    styled = {style: f"beam5,style:{style}" for style in ("coco", "flickr8k")}
    general = [
        coco("general-captioner", cider=102.0, decoding=styled["coco"]),
        result(name="general-captioner", cider=70.0, decoding=styled["flickr8k"]),
    ]
    for content in general:
        content["training"]["recipe"]["data"] = [{"name": "coco", "weight": 1.0}, {"name": "flickr8k", "weight": 2.0}]
    text = make_page(*general, coco("coco-soft", cider=90.0), result(name="flickr8k-soft"))
    on_coco, on_flickr8k = section(text, "coco test"), section(text, "flickr8k test")
    assert [*table_rows(section(on_coco, "Captioners"))] == ["model", "general-captioner", "coco-soft"]
    assert [*table_rows(section(on_flickr8k, "Captioners"))] == ["model", "general-captioner", "flickr8k-soft"]
    assert table_rows(section(on_coco, "Captioners"))["general-captioner"][10] == "102.0"
    assert text.count("- general-captioner: recipe general-captioner; trained on coco and flickr8k\n") == 2


def test_the_number_of_images_is_printed(make_page):
    text = make_page(result(), coco("soft"))
    assert "1,000 images.\n" in section(text, "flickr8k test")
    assert "4,398 images of the 5,000 in Karpathy's split:" in section(text, "coco test")
    assert "1,000 or 4,398 images of" in make_page(coco("soft"), coco("hard", 1000))


def test_published_scores_are_those_of_the_data_set(make_page):
    text = make_page(result(), coco("soft"), result(data="mine"), coco("soft", split="dev"))
    published = table_rows(section(section(text, "coco test"), "Published scores, for comparison"))
    xu = "Show, attend and tell (Xu et al. 2015)"
    assert published[f"{xu}: soft attention"][1:6] == ["70.7", "49.2", "34.4", "24.3", "23.90"]
    assert published[f"{xu}: hard attention"][1:6] == ["71.8", "50.4", "35.7", "25.0", "23.04"]
    assert published["tutorial by sgrvinod: soft attention"][4] == "33.3"
    assert published["LRP paper (Sun et al. 2021): MH-FC"][5:8] == ["25.5", "53.1", "97.1"]
    on_flickr8k = table_rows(section(section(text, "flickr8k test"), "Published scores, for comparison"))
    assert on_flickr8k[f"{xu}: hard attention"][1:6] == ["67.0", "45.7", "31.4", "21.3", "20.30"]
    assert len(on_flickr8k) == 3
    assert "Published" not in section(text, "mine test")
    assert "Published" not in section(text, "coco dev")


def objects(cat: int, bus: int) -> dict[str, Any]:
    shares = {"recall": (cat + bus, 30), "invented_persons": (112, 138)}
    table = {name: {"percent": 100 * count / of, "count": count, "of": of} for name, (count, of) in shares.items()}
    by_category = {"bus": {"count": bus, "of": 10}, "cat": {"count": cat, "of": 20}}
    return {**table, "by_category": by_category}


def test_object_words_have_a_row_for_each_model_and_each_category(make_page):
    assert "Object words" not in make_page(coco("soft"))
    models = (coco("soft", cider=90.0, objects=objects(1, 0)), coco("hard", objects=objects(10, 5)), coco("none"))
    text = section(make_page(*models), "Object words")
    rows = table_rows(text)
    assert rows["soft"] == ["3.3", "1", "30", "81.2", "112", "138"]
    assert rows["hard"][:3] == ["50.0", "15", "30"]
    assert "none" not in text
    by_category = table_rows(text[text.index("Recall by category") :])
    assert by_category == {
        "category": ["images", "soft", "hard"],
        "cat": ["20", "5.0", "50.0"],
        "bus": ["10", "0.0", "50.0"],
    }


def hallucination(sentence: int, mean_precision: float | None = 70.0) -> dict[str, Any]:
    word = {"word": "dog", "precision": 80.0, "in_training": 12_345, "in_captions": 1_012}
    never = {"word": "hat", "precision": None, "in_training": 500, "in_captions": 0}
    words = {"map": mean_precision, "recall": 50.0, "f1": 58.0, "words": [word, never]}
    return {
        "chair": {
            "sentence": {"count": sentence, "of": 100},
            "instance": {"count": sentence, "of": 200},
            "objects": "COCO boxes and references",
        },
        "bad_endings": {"count": 1, "of": 100},
        "frequent_words": words if mean_precision is not None else None,
    }


def test_hallucination_has_a_row_for_each_model_that_was_measured(make_page):
    assert "Hallucination" not in make_page(coco("soft"))
    models = (
        result(seed=0, hallucination=hallucination(10, 70.0)),
        result(seed=1, hallucination=hallucination(12, 72.0)),
        result(name="without-train", hallucination=hallucination(20, None)),
        result(name="none"),
    )
    text = section(make_page(*models), "Hallucination")
    rows = table_rows(text)
    scores = ["24.0", "22.0", "60.0"]
    assert rows["model"][:6] == ["mAP", "recall", "F1", "CHAIR-s", "CHAIR-i", "bad endings"]
    means = ["71.0 ± 1.4", "50.0 ± 0.0", "58.0 ± 0.0", "11.0 ± 1.4", "5.5 ± 0.7", "1.0 ± 0.0"]
    assert rows["soft"][:6] == means
    assert rows["without-train"] == ["–", "–", "–", "20.0", "10.0", "1.0", *scores]
    assert "none" not in rows
    assert "What an image has: COCO boxes and references." in text
    assert "over the 2 object words that are most frequent" in text
    words = table_rows(text[text.index("Frequent object words") :])
    assert words == {
        **{"word": ["in training", "soft"], "dog": ["12,345", "80.0 (1,012)"], "hat": ["500", "– (0)"]},
    }


def test_a_seed_without_hallucination_leaves_a_dash(make_page):
    models = (result(seed=0, hallucination=hallucination(10)), result(seed=1))
    rows = table_rows(section(make_page(*models), "Hallucination"))
    assert rows["soft"][:6] == ["–"] * 6
    assert rows["soft"][8] == "60.0 ± 0.0"


STUDY = {f"flickr8k-encoder-{name}": f"flickr8k-encoder-{name}" for name in ("vgg16", "resnet152")}


def test_the_encoder_study_lists_encoders_without_a_result_too(make_page):
    recipes = {**STUDY, "flickr8k-soft": "flickr8k-soft"}
    text = make_page(result(), result(name="flickr8k-encoder-vgg16"), recipes=recipes)
    rows = table_rows(section(text, "Encoders"))
    assert rows["vgg16"][:2] == ["14 × 14", "224"]
    assert rows["vgg16"][2:9] == ["66.0", "48.0", "34.0", "24.0", "22.0", "46.0", "60.0"]
    assert [*rows] == ["encoder", "vgg16", "resnet152: weights not available"]
    assert set(rows["resnet152: weights not available"]) == {"–"}
    assert [*table_rows(section(text, "Captioners"))] == ["model", "soft"]


def test_the_dev_split_lists_measured_encoders_only(make_page):
    text = make_page(result(name="flickr8k-encoder-vgg16", split="dev"), recipes=STUDY)
    assert [*table_rows(section(text, "Encoders"))] == ["encoder", "vgg16"]
    assert "### Captioners" not in text


def test_a_study_without_any_result_has_no_table(make_page):
    assert "not available" not in make_page(result(), recipes=STUDY)


def test_attention_statistics_are_shown_for_files_that_have_them(make_page):
    assert "Attention" not in make_page(result())
    seeds = [result(seed, name="new", attention=attention(entropy=2.0 + seed)) for seed in (0, 1)]
    text = make_page(result(name="old"), *seeds)
    rows = table_rows(section(text, "Attention"))
    assert rows["model"] == ["L", "entropy", "entropy / log L", "change", "largest α"]
    assert rows["new"] == ["49", "2.50 ± 0.71", "0.77 ± 0.00", "0.25 ± 0.00", "0.12 ± 0.00"]
    assert "old" not in rows
    assert "The gate β" not in text


def test_attention_statistics_of_version_0_1_are_read(make_page):
    new = attention("words")
    old = {"places" if name == "features" else name: value for name, value in new.items()}
    upgraded = make_page(result(glances=old))
    assert upgraded == make_page(result(attention=new))


def test_a_mean_number_of_regions_keeps_its_decimal(make_page):
    regions = attention() | {"features": 7.25}
    assert table_rows(section(make_page(result(attention=regions)), "Attention"))["soft"][0] == "7.2"


def test_a_gate_that_admits_words_shows_ten_words_at_either_end(make_page):
    text = section(make_page(result(name="ada", attention=attention("words"))), "The gate β")
    rows = table_rows(text)
    assert [*rows] == ["lowest", *(f"word{n}" for n in range(10))]
    assert rows["word0"] == ["0.00", "100", "word19", "0.19", "119"]
    assert rows["word9"] == ["0.09", "109", "word10", "0.10", "110"]
    assert "**ada**, mean β 0.42" in text
    assert "at least 10 times" in text


def test_a_gate_that_admits_words_lists_the_most_frequent_words_if_they_are_recorded(make_page):
    counted = attention("words")
    assert "most frequent" not in make_page(result(attention=counted))
    counted["gate"]["commonest"] = [{"word": "a", "beta": 0.7, "count": 900}, {"word": "dog", "beta": 0.1, "count": 80}]
    assert "The most frequent words: a 0.70, dog 0.10." in make_page(result(attention=counted))


def test_a_gate_that_admits_the_image_shows_five_words_at_either_end(make_page):
    ada, soft = result(name="ada", attention=attention("words")), result(attention=attention("image"))
    text = section(make_page(ada, soft), "The gate β")
    (row,) = [line for line in text.splitlines() if line.startswith("| soft |")]
    lowest, highest = ([f"word{n} {n / 100:.2f}" for n in ends] for ends in (range(5), range(19, 14, -1)))
    assert row == f"| soft | {', '.join(lowest)} | {', '.join(highest)} | 0.42 |"


def test_a_gate_without_frequent_words_shows_dashes(make_page):
    rare = attention("image")
    rare["gate"] |= {"lowest": [], "highest": []}
    assert "| soft | – | – | 0.42 |" in make_page(result(attention=rare))


def test_explored_runs_show_epochs_and_length_penalty(make_page, tmp_path):
    runs = {
        "complete": exploration(6, 6, length_penalty=0.85),
        "stopped": exploration(6, 8),
        "version 0.1": exploration(1, 1, length=0.7),
    }
    (tmp_path / "results" / "explored").mkdir(parents=True)
    for name, run in runs.items():
        (tmp_path / "results" / "explored" / f"{name}.json").write_text(json.dumps(run))
    rows = table_rows(section(make_page(result()), "Tried on dev"))
    assert rows["run"][1:3] == ["epochs", "length penalty"]
    assert {name: rows[name][1:3] for name in runs} == {
        "complete": ["6", "0.85"],
        "stopped": ["6 of 8", "–"],
        "version 0.1": ["1", "0.7"],
    }


def test_markup_in_names_and_words_is_escaped(make_page):
    script = "<script>x</script>|*a*"
    gated = attention("words")
    gated["gate"]["commonest"] = [{"word": script, "beta": 0.7, "count": 900}]
    gated["gate"]["lowest"][0]["word"] = script
    hostile = result(name=script, data=script, split=script, decoding=script, device=script, attention=gated)
    hostile["training"] |= {"teachers": [script], "device": script}
    hostile["training"]["recipe"]["encoder"] = {"name": script, "weights": script}
    briefly = result(name=script + "2", data=script, split=script, attention=attention("image"))
    text = make_page(hostile, briefly, result(name="soft", data=script, split=script))
    outside_code = re.sub(r"`[^`]*`", "", text)
    assert "<script>" not in outside_code
    assert "&lt;script>" in outside_code
    assert "*a*" not in outside_code
    for line in re.findall(r"^\| .*\|$", section(text, "Captioners"), re.MULTILINE):
        assert len(re.findall(r"(?<!\\)\|", line)) == 17, "a name cannot add a cell"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "malformed JSON"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("[]", "holds no JSON object"),
        ("{}", 'field "model" is missing'),
        ({"model": 5}, 'field "model" is not text'),
        ({"scores": None}, 'field "scores" is missing'),
        ({"scores": {**result()["scores"], "bleu": [1.0]}}, r'field "scores.bleu\[1\]" is missing'),
        ({"scores": {**result()["scores"], "cider": "60"}}, 'field "scores.cider" is not a number'),
        ({"scores": {**result()["scores"], "cider": float("nan")}}, 'field "scores.cider" is not a number'),
        ({"training": {**result()["training"], "parameters": 10**400}}, 'field "training.parameters" is not a number'),
        ({"training": 5}, 'field "training" is not an object'),
        ({"hallucination": {}}, 'field "hallucination.chair" is missing'),
        ({"objects": {}}, 'field "objects.invented_persons" is missing'),
        (
            {"objects": {**objects(1, 0), "by_category": {"cat": {}}}},
            'field "objects.by_category.cat.count" is missing',
        ),
        ({"training": {"recipe": {"seed": "a"}}}, 'field "training.recipe.seed" is not a whole number'),
        ({"attention": {**attention("image"), "gate": {}}}, 'field "attention.gate.mean" is missing'),
        ({"attention": {**attention("image"), "gate": {**attention("image")["gate"], "lowest": [5]}}}, "lowest"),
    ],
)
def test_a_file_that_is_not_a_result_is_named_in_one_line(tmp_path, content, problem):
    text = content if isinstance(content, str) else json.dumps({**result(), **content})
    (tmp_path / "wrong.json").write_text(text)
    with pytest.raises(UserError, match=problem) as error:
        results_page(tmp_path)
    assert "wrong.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_an_exploration_is_named_in_one_line(tmp_path):
    (tmp_path / "explored").mkdir()
    (tmp_path / "good.json").write_text(json.dumps(result()))
    (tmp_path / "explored" / "wrong.json").write_text("{}")
    with pytest.raises(UserError, match=r'wrong.json: .*field "progress" is missing'):
        results_page(tmp_path)


def test_a_folder_without_results_or_recipes_is_named_in_one_line(tmp_path):
    with pytest.raises(UserError, match="no results"):
        results_page(tmp_path)
    (tmp_path / "good.json").write_text(json.dumps(result()))
    with pytest.raises(UserError, match="no such folder of recipes"):
        results_page(tmp_path, tmp_path / "missing")
    (tmp_path / "wrong.toml").write_text("name = ")
    with pytest.raises(UserError, match=r"wrong\.toml: not TOML"):
        results_page(tmp_path, tmp_path)


def test_recipes_are_read_from_the_folder_next_to_the_results(make_page, tmp_path):
    text = make_page(result(), recipes={"flickr8k-soft": "soft"})
    assert "`recipes/flickr8k-soft.toml`" in text
    assert results_page(tmp_path / "results", tmp_path / "recipes") == text


def test_the_page_in_docs_is_up_to_date():
    assert (ROOT / "docs" / "results.md").read_text() == results_page(ROOT / "results", ROOT / "recipes")
