"""The captioner inside the package is what its card and the results say."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import saywhy
from saywhy.data.datasets import read
from saywhy.data.tokenizer import MARKERS
from saywhy.inference.evaluation import caption_split
from saywhy.inference.model import SHIPPED, locate
from saywhy.metrics import cider

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "images").glob("*.jpg"))
STYLES = {"COCO test": "coco", "Flickr8k test": "flickr8k"}
RESULTS = {data: ROOT / "results" / f"general-captioner-{style}.json" for data, style in STYLES.items()}


@pytest.fixture(scope="module")
def model() -> saywhy.Model:
    return saywhy.load(device="cpu")


def test_it_is_whole_and_at_most_50_megabytes():
    files = {path.name: path.stat().st_size for path in locate(SHIPPED).iterdir()}
    metadata = {"config.json", "vocabulary.json", "README.md", "run.json", "risk.json", "familiarity.safetensors"}
    assert set(files) == {"model.safetensors", *metadata}
    assert sum(files.values()) < 50e6


def test_it_tells_how_likely_each_thing_it_names_is_made_up(model):
    captions = list(model.captions(EXAMPLES, risk=True))
    risks = [[risk for risk in caption.risks if risk is not None] for caption in captions]
    assert sum(map(bool, risks)) >= 9, "nearly all captions name an object"
    assert all(0 < risk < 1 for row in risks for risk in row)
    assert len({risk for row in risks for risk in row}) > 9, "the risk depends on the word and the image"
    assert model.risk.about["split"] == "dev"


def test_it_captions_every_example_image_with_words_of_its_vocabulary(model):
    captions = list(model.captions(EXAMPLES))
    assert len(captions) == 11
    for caption in captions:
        assert 1 <= len(caption.words) <= 20
        assert set(caption.words) <= set(model.vocabulary.words) - set(MARKERS)
        assert len(caption.logprobs) == len(caption.words) == len(caption.alpha)
    assert len({caption.text for caption in captions}) >= 9, "different photographs have different captions"


def test_every_example_image_has_a_licence_and_they_take_little_room():
    licences = (EXAMPLES[0].parent / "LICENCES.txt").read_text()
    assert all(re.search(rf"^{path.name} .*(CC0|public domain|Pexels|Pixabay)", licences, re.M) for path in EXAMPLES)
    assert sum(path.stat().st_size for path in EXAMPLES) < 1.5e6


def test_the_example_images_that_the_documentation_names_exist():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"examples/images/(\w+\.\w+)", page.read_text())}
    named |= set(re.findall(r"\$\(IMAGES\)/(\w+\.\w+)", (ROOT / "Makefile").read_text()))
    assert named
    assert named <= {path.name for path in EXAMPLES}


@pytest.mark.parametrize("data", RESULTS)
def test_its_card_states_the_scores_of_the_results_file(data):
    card = (locate(SHIPPED) / "README.md").read_text()
    scores = json.loads(RESULTS[data].read_text())["scores"]
    row = next(line for line in card.splitlines() if line.startswith(f"| {data} |"))
    stated = [float(number) for number in re.findall(r"\d+\.\d", row)]
    measured = [*scores["bleu"], scores["meteor"], scores["rouge_l"], scores["cider"]]
    assert stated == [round(value, 1) for value in measured]
    assert scores["signature"] in card


@pytest.mark.parametrize("data", RESULTS)
def test_its_results_were_measured_with_the_decoding_it_ships_with(data, model):
    assert json.loads(RESULTS[data].read_text())["decoding"] == str(replace(model.decoding, style=STYLES[data]))


@pytest.mark.data
@pytest.mark.slow
def test_it_scores_on_the_test_split_what_the_results_say(model, flickr8k):
    images = read(flickr8k).split("test").images
    decoding = replace(model.decoding, style="flickr8k")
    said = caption_split(model.captioner, model.vocabulary, model.preprocessing, images, decoding)
    words = [said.captions[image.name].words for image in images]
    score = 100 * cider(words, [image.captions for image in images]).cider
    assert score == pytest.approx(json.loads(RESULTS["Flickr8k test"].read_text())["scores"]["cider"], abs=0.5)


@pytest.mark.data
def test_on_fifty_test_images_it_is_far_better_than_captions_of_other_images(model, flickr8k):
    images = read(flickr8k).split("test").images[:50]
    said = caption_split(model.captioner, model.vocabulary, model.preprocessing, images, model.decoding, workers=0)
    words = [said.captions[image.name].words for image in images]
    references = [image.captions for image in images]
    shifted = references[1:] + references[:1]
    assert cider(words, references).cider > 5 * cider(words, shifted).cider
