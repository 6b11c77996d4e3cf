"""The page of results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from saywhy.errors import UserError
from saywhy.reports.results_page import page

ROOT = Path(__file__).parents[2]


def result(seed: int = 0, cider: float = 60.0, name: str = "soft", split: str = "test", **more: Any) -> dict[str, Any]:
    scores = {"bleu": [66.0, 48.0, 34.0, 24.0], "bleu_no_penalty": [67.0, 49.0, 35.0, 25.0], "meteor": 22.0}
    scores |= {"rouge_l": 46.0, "cider": cider, "n": 1000, "signature": "tok:ptb"}
    recipe = {"name": name, "seed": seed, "encoder": {"name": "vgg16"}, "preprocessing": {"size": 224}}
    training = {"recipe": recipe, "progress": {"seconds": 120.0}, "device": "NVIDIA GPU", "parameters": 16_000_000}
    about = {"captions_per_second": 8.0, "device": "x86_64 CPU", "threads": 2, "decoding": "beam5"}
    return {"model": name, "data": "flickr8k", "split": split, "scores": scores, "training": training, **about, **more}


def attentions(gate_admits: str | None = None, entropy: float = 3.0) -> dict[str, Any]:
    words = [{"word": f"word{n}", "beta": n / 100, "count": 100 + n} for n in range(20)]
    gate = {"mean": 0.42, "least": 10, "lowest": words[:10], "highest": words[:9:-1]} if gate_admits else None
    numbers = {"places": 49.0, "entropy": entropy, "share": 0.77, "change": 0.25, "largest": 0.125}
    return {"words": 5, "heads": 1, **numbers, "gate": gate, "gate_admits": gate_admits}


@pytest.fixture
def made(tmp_path: Path):
    """The page of these results, and of recipes with these names."""

    def make(*results: dict[str, Any], recipes: dict[str, str] | None = None) -> str:
        for number, each in enumerate(results):
            (tmp_path / "results").mkdir(exist_ok=True)
            (tmp_path / "results" / f"{number}.json").write_text(json.dumps(each))
        for stem, name in (recipes or {}).items():
            (tmp_path / "recipes").mkdir(exist_ok=True)
            (tmp_path / "recipes" / f"{stem}.toml").write_text(f'name = "{name}"\n')
        return page(tmp_path / "results")

    return make


def section(text: str, title: str) -> str:
    """What stands under this heading, up to the next one of its kind or a higher one."""
    level = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert level, f"no section {title}"
    return re.split(rf"^#{{1,{len(level[1])}}} ", text[level.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the first table, by their first cell."""
    lines = [line for line in re.split(r"\n\n(?!\|)", text[text.index("|") :])[0].splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({len(each) for each in cells}) == 1, "a row with another number of cells"
    return {each[0]: each[1:] for each in cells if set(each[0]) != {"-"}}


def test_a_row_has_every_score_and_what_it_cost(made):
    found = rows(section(made(result()), "Captioners"))
    assert dict(zip(found["model"], found["soft"], strict=True)) == {
        **{"B1": "66.0", "B2": "48.0", "B3": "34.0", "B4": "24.0"},
        **{"B1′": "67.0", "B2′": "49.0", "B3′": "35.0", "B4′": "25.0"},
        **{"METEOR": "22.0", "ROUGE-L": "46.0", "CIDEr": "60.0"},
        **{"par. M": "16.0", "train s": "120", "GPU": "GPU", "cap/s": "8.0 CPU"},
    }


def test_several_seeds_are_a_mean_with_its_deviation_and_each_by_itself(made):
    text = made(*(result(seed, cider) for seed, cider in enumerate((60.0, 61.0, 62.0))), result(0, 50.0, "other"))
    assert rows(section(text, "Captioners"))["soft"][10] == "61.0 ± 1.0"
    assert rows(section(text, "Captioners"))["other"][10] == "50.0"
    seeds = [line for line in section(text, "Seed by seed").splitlines() if line.startswith("| soft |")]
    assert [line.split("|")[2].strip() for line in seeds] == ["0", "1", "2"]
    assert all(cider in line for cider, line in zip(("60.00", "61.00", "62.00"), seeds, strict=True))
    assert "other" not in section(text, "Seed by seed")
    assert "over the seeds 0, 1, 2" in text


def test_one_model_decoded_in_two_ways_is_not_averaged(made):
    found = rows(section(made(result(), result(cider=70.0, decoding="greedy")), "Captioners"))
    assert [found[f"soft ({way})"][10] for way in ("greedy", "beam5")] == ["70.0", "60.0"]


def test_the_best_comes_first_and_test_before_dev(made):
    text = made(result(name="worse", cider=50.0), result(name="better"), result(split="dev"))
    assert [*rows(section(text, "Captioners"))] == ["model", "better", "worse"]
    assert re.findall(r"^## (flickr8k .*)$", text, re.MULTILINE) == ["flickr8k test", "flickr8k dev"]


def test_a_row_says_how_it_was_made(made):
    taught = result(name="soft-attention-flickr8k")
    taught["training"]["teachers"] = ["one", "two"]
    from_file = result(name="flickr8k-mh-fc")
    from_file["training"]["recipe"]["encoder"]["weights"] = "vgg16.safetensors"
    given = {key: value for key, value in result(name="mine").items() if key != "training"}
    names = {"flickr8k-soft-distilled": "soft-attention-flickr8k", "flickr8k-mh-fc": "flickr8k-mh-fc"}
    text = made(taught, from_file, given, result(name="unknown"), recipes=names)
    assert "- soft-attention-flickr8k: `recipes/flickr8k-soft-distilled.toml`; taught by one, two\n" in text
    assert "- flickr8k-mh-fc: `recipes/flickr8k-mh-fc.toml`; weights from vgg16.safetensors\n" in text
    assert "- mine: not trained here" in text
    assert "- unknown: recipe unknown\n" in text
    assert "Signature: `tok:ptb`" in text


def test_two_signatures_say_whose_they_are(made):
    other = result(name="other")
    other["scores"]["signature"] = "tok:given"
    text = made(result(), other)
    assert "Signature of soft: `tok:ptb`" in text
    assert "Signature of other: `tok:given`" in text


def test_a_metric_that_was_left_out_is_a_dash_and_not_a_number(made):
    without = result()
    without["scores"]["meteor"] = None
    assert rows(section(made(without), "Captioners"))["soft"][8] == "–"


def test_a_mean_is_not_taken_over_some_of_the_seeds(made):
    without = result(1)
    without["scores"]["meteor"] = None
    assert rows(section(made(result(0), without), "Captioners"))["soft"][8] == "–"


def test_seconds_on_a_shared_gpu_are_marked_and_explained(made):
    alone, shared = result(), result(name="crowded")
    shared["training"]["shared_gpu"] = True
    assert "same GPU" not in section(made(alone), "Captioners")
    text = section(made(alone, shared), "Captioners")
    assert rows(text)["crowded"][12] == "120 †"
    assert rows(text)["soft"][12] == "120"
    assert "† Measured with other runs on the same GPU." in text


def test_oracle_regions_stand_last_and_are_called_what_they_are(made):
    assert "Oracle" not in made(result())
    drawn = result(name="mh-fc", cider=90.0, regions={"kind": "boxes", "oracle": True})
    detected = result(name="mh-fc-regions", cider=80.0, regions={"kind": "features", "oracle": False})
    text = section(made(drawn, result(), detected), "Captioners")
    assert [*rows(text)] == ["model", "mh-fc-regions", "soft", "mh-fc ‡"]
    assert "no score on unseen images" in text


STUDY = {f"flickr8k-encoder-{name}": f"flickr8k-encoder-{name}" for name in ("vgg16", "resnet152")}


def test_the_encoder_study_has_a_table_of_its_own_with_what_could_not_be_measured(made):
    text = made(result(), result(name="flickr8k-encoder-vgg16"), recipes={**STUDY, "flickr8k-soft": "flickr8k-soft"})
    found = rows(section(text, "Encoders"))
    assert found["vgg16"][:2] == ["14 × 14", "224"]
    assert found["vgg16"][2:9] == ["66.0", "48.0", "34.0", "24.0", "22.0", "46.0", "60.0"]
    assert [*found] == ["encoder", "vgg16", "resnet152: weights not available here"]
    assert set(found["resnet152: weights not available here"]) == {"–"}
    assert [*rows(section(text, "Captioners"))] == ["model", "soft"]


def test_dev_lists_only_what_was_measured(made):
    text = made(result(name="flickr8k-encoder-vgg16", split="dev"), recipes=STUDY)
    assert [*rows(section(text, "Encoders"))] == ["encoder", "vgg16"]
    assert "### Captioners" not in text


def test_a_study_that_was_not_run_is_not_called_unavailable(made):
    assert "not available" not in made(result(), recipes=STUDY)


def test_attention_is_shown_of_the_files_that_have_it(made):
    assert "Attention" not in made(result())
    text = made(result(name="old"), *(result(n, name="new", attentions=attentions(entropy=2.0 + n)) for n in (0, 1)))
    found = rows(section(text, "Attention"))
    assert found["model"] == ["places", "entropy", "share of log L", "change", "largest α"]
    assert found["new"] == ["49", "2.50 ± 0.71", "0.77 ± 0.00", "0.25 ± 0.00", "0.12 ± 0.00"]
    assert "old" not in found
    assert "What the gate says" not in text


def test_places_that_differ_between_images_keep_a_decimal(made):
    regions = attentions() | {"places": 7.25}
    assert rows(section(made(result(attentions=regions)), "Attention"))["soft"][0] == "7.2"


def test_a_gate_between_image_and_words_shows_ten_words_at_either_end(made):
    text = section(made(result(name="ada", attentions=attentions("words"))), "What the gate says")
    found = rows(text)
    assert [*found] == ["lowest", *(f"word{n}" for n in range(10))]
    assert found["word0"] == ["0.00", "100", "word19", "0.19", "119"]
    assert found["word9"] == ["0.09", "109", "word10", "0.10", "110"]
    assert "**ada**, mean β 0.42" in text
    assert "said most often" not in text  # this file is of before that was counted
    counted = attentions("words")
    counted["gate"]["commonest"] = [{"word": "a", "beta": 0.7, "count": 900}, {"word": "dog", "beta": 0.1, "count": 80}]
    text = section(made(result(name="ada", attentions=counted)), "What the gate says")
    assert "The words said most often: a 0.70, dog 0.10." in text
    assert "at least 10 times" in text


def test_any_other_gate_shows_five(made):
    ada, soft = result(name="ada", attentions=attentions("words")), result(attentions=attentions("image"))
    text = section(made(ada, soft), "What the gate says")
    (row,) = [line for line in text.splitlines() if line.startswith("| soft |")]
    lowest, highest = ([f"word{n} {n / 100:.2f}" for n in ends] for ends in (range(5), range(19, 14, -1)))
    assert row == f"| soft | {', '.join(lowest)} | {', '.join(highest)} | 0.42 |"


def test_a_gate_with_no_word_said_often_enough_is_dashes(made):
    rare = attentions("image")
    rare["gate"] |= {"lowest": [], "highest": []}
    assert "| soft | – | – | 0.42 |" in made(result(attentions=rare))


def test_an_explored_run_looked_at_every_other_epoch_is_not_cut_off(made, tmp_path):
    history = [{"epoch": epoch, "bleu4": 20.0} for epoch in (2, 4, 6)]
    run = {"what": "half the rate", "progress": {"best": 50.0, "seconds": 9.0, "history": history}}
    (tmp_path / "results" / "explored").mkdir(parents=True)
    for name, planned in (("whole", 6), ("cut", 8)):
        text = json.dumps({**run, "recipe": {"training": {"epochs": planned}}})
        (tmp_path / "results" / "explored" / f"{name}.json").write_text(text)
    found = rows(section(made(result()), "Tried on dev"))
    assert (found["whole"][1], found["cut"][1]) == ("6", "6 of 8")


def test_an_explored_run_says_with_which_length_exponent_it_was_decoded(made, tmp_path):
    run = {"what": "as it is", "progress": {"best": 50.0, "seconds": 9.0, "history": [{"epoch": 1, "bleu4": 20.0}]}}
    (tmp_path / "results" / "explored").mkdir(parents=True)
    for name, decoding in (("said", {"decoding": {"length": 0.85}}), ("unsaid", {})):
        text = json.dumps({**run, "recipe": {"training": {"epochs": 1}, **decoding}})
        (tmp_path / "results" / "explored" / f"{name}.json").write_text(text)
    found = rows(section(made(result()), "Tried on dev"))
    assert found["run"][2] == "length"
    assert (found["said"][2], found["unsaid"][2]) == ("0.85", "–")


def test_no_results_and_broken_files_are_said_in_a_line(tmp_path):
    with pytest.raises(UserError, match="no results"):
        page(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        page(tmp_path)
    (tmp_path / "broken.json").write_text(json.dumps(result()))
    with pytest.raises(UserError, match="no such folder of recipes"):
        page(tmp_path, tmp_path / "gone")
    (tmp_path / "broken.toml").write_text("name = ")
    with pytest.raises(UserError, match="not TOML"):
        page(tmp_path, tmp_path)


def test_the_recipes_beside_the_results_are_those_of_the_page(made, tmp_path):
    names = {"flickr8k-soft": "soft"}
    beside = made(result(), recipes=names)
    assert "`recipes/flickr8k-soft.toml`" in beside
    assert page(tmp_path / "results", tmp_path / "recipes") == beside


def test_the_page_in_the_docs_is_the_one_the_results_give():
    assert (ROOT / "docs" / "results.md").read_text() == page(ROOT / "results", ROOT / "recipes")
