"""CHAIR equals hand-counted cases, and objects come from boxes, references and phrases."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from reference import hallucination as slow
from saywhy.data.datasets import CaptionedImage, Dataset, read
from saywhy.errors import UserError
from saywhy.hallucination.chair import COCO, ENTITIES, REFERENCES, ImageObjects, chair, image_objects
from saywhy.metrics.objects import Share

NAMES = {
    **dict.fromkeys(["dog", "dogs", "puppy", "puppies"], "dog"),
    **dict.fromkeys(["hot dog", "hot dogs", "hotdog"], "hot dog"),
    **dict.fromkeys(["traffic light", "traffic lights", "stoplight"], "traffic light"),
    **dict.fromkeys(["dining table", "table", "kitchen table", "tables"], "dining table"),
    **dict.fromkeys(["teddy bear", "teddy bears"], "teddy bear"),
    **dict.fromkeys(["bear", "bears"], "bear"),
    **dict.fromkeys(["man", "women", "people", "police officer"], "person"),
    **dict.fromkeys(["knives", "knife"], "knife"),
    **dict.fromkeys(["coffee table", "coffee tables", "train station", "phone booth"], ""),
    **dict.fromkeys(["train", "trains"], "train"),
}
FILLERS = ["a", "two", "on", "red", "hot", "coffee", "light", "walks", "station", "horsey", "dres"]


def objects(*sets: str) -> ImageObjects:
    """The objects of each image, separated by commas."""
    return ImageObjects(tuple(frozenset(filter(None, names.split(","))) for names in sets))


@pytest.mark.parametrize(
    ("caption", "image", "hallucinated", "mentions"),
    [
        ("a hot dog on a plate", "hot dog", [], 1),
        ("a hot dog on a plate", "dog", ["hot dog"], 1),
        ("a dog eats hot dogs", "hot dog", ["dog"], 2),
        ("two traffic lights and a stoplight", "traffic light", [], 2),
        ("a traffic light", "car", ["traffic light"], 1),
        ("people at a dining table", "person,dining table", [], 2),
        ("people at a kitchen table", "person", ["kitchen table"], 2),
        ("people at a coffee table", "person", [], 1),
        ("knives, wine glasses and sheep", "knife,wine glass,sheep", [], 3),
        ("horses and a dress", "horse", [], 1),
        ("a man and a man and a dog", "dog", ["man", "man"], 3),
        ("a teddy bear", "teddy bear", [], 1),
        ("a bear", "teddy bear", ["bear"], 1),
        ("a woman in a red shirt", "person", [], 1),
        ("a puppy and a kitten", "dog", ["kitten"], 2),
        ("an elephant with its baby", "elephant", [], 1),
        ("a stove top oven", "oven", [], 2),
        ("a toilet seat", "toilet", [], 1),
        ("a train station", "", [], 0),
    ],
)
def test_hand_counted_captions(caption: str, image: str, hallucinated: list[str], mentions: int) -> None:
    score = chair([caption], objects(image))
    assert [mention.word for mention in score.per_caption[0].hallucinated] == hallucinated
    assert len(score.per_caption[0].mentioned) == mentions
    assert score.sentence == bool(hallucinated)
    assert score.instance == pytest.approx(len(hallucinated) / mentions) if mentions else math.isnan(score.instance)


def test_captions_and_mentions_are_counted_over_all_captions() -> None:
    captions = ["a man and a dog and a cat", "a man on a bench", "a hot dog", "a blue sky"]
    score = chair(captions, objects("person", "person,bench", "hot dog", ""))
    assert (score.sentences, score.instances) == (Share(1, 4), Share(2, 6))
    assert (score.sentence, score.instance) == (1 / 4, 2 / 6)
    assert score.as_dict() == {
        "sentence": {"percent": 25, "count": 1, "of": 4},
        "instance": {"percent": pytest.approx(100 / 3), "count": 2, "of": 6},
        "objects": REFERENCES,
    }


@pytest.mark.parametrize("seed", range(5))
def test_chair_equals_a_loop_over_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    captions = [" ".join(rng.choices([*NAMES, *FILLERS], k=rng.randint(1, 9))).split() for _ in range(60)]
    categories = sorted(set(NAMES.values()) - {""})
    sets = tuple(frozenset(rng.sample(categories, rng.randint(0, 5))) for _ in captions)
    score = chair(captions, ImageObjects(sets))
    assert (score.sentence, score.instance) == pytest.approx(slow.chair(captions, sets, NAMES))


def test_every_image_needs_a_caption() -> None:
    with pytest.raises(UserError, match="1 captions but objects of 2 images"):
        chair(["a dog"], objects("dog", "cat"))
    with pytest.raises(UserError, match="no captions"):
        chair([], objects())


def test_objects_of_some_images_can_be_selected() -> None:
    assert objects("dog", "cat", "cow").select([0, 2]) == objects("dog", "cow")


def data_set(folder: Path, *captions: list[str]) -> Dataset:
    images = [CaptionedImage(f"{n}.jpg", folder / f"{n}.jpg", tuple(group), "test") for n, group in enumerate(captions)]
    return Dataset("mine", folder, tuple(images))


def write_coco(folder: Path, *boxes: list[str], images: int | None = None) -> None:
    """COCO's instances: the categories of the boxes of each image."""
    names = sorted({name for group in boxes for name in group})
    document = {
        "images": [
            {"id": n, "file_name": f"{n}.jpg", "width": 9, "height": 9} for n in range(len(boxes))[:images]
        ],
        "categories": [{"id": n, "name": name, "supercategory": "other"} for n, name in enumerate(names)],
        "annotations": [
            {"image_id": n, "category_id": names.index(name), "bbox": [1, 1, 5, 5]}
            for n, group in enumerate(boxes)
            for name in group
        ],
    }  # fmt: skip
    (folder / "instances_train2017.json").write_text(json.dumps(document))


def test_objects_of_coco_are_those_of_boxes_and_of_references(tmp_path: Path) -> None:
    write_coco(tmp_path, ["dog", "wine glass"], [])
    found = image_objects(data_set(tmp_path, ["A man pets two puppies.", "Someone at a table."], ["A blue bus."]))
    assert found.source == COCO
    assert found.sets == ({"dog", "wine glass", "person", "dining table"}, {"bus"})


def test_references_decide_which_animal_a_box_shows(tmp_path: Path) -> None:
    write_coco(tmp_path, ["animal"], ["animal"], ["animal", "car"])
    data = data_set(tmp_path, ["A lamb with a cow."], ["A goat."], ["A car."])
    named, goat, unnamed = image_objects(data).sets
    assert named == {"sheep", "cow"}
    animals = {"bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"}
    assert goat == animals
    assert unnamed == {"car", *animals}
    assert chair(["a dog and a bus", "a sheep", "a bus"], image_objects(data)).instances == Share(3, 4)


def test_a_data_set_without_boxes_is_refused_unless_references_are_chosen(tmp_path: Path) -> None:
    data = data_set(tmp_path, ["A dog."])
    with pytest.raises(
        UserError, match=r"no boxes, which CHAIR needs; put COCO's instances_\*\.json or the boxes\.jsonl"
    ):
        image_objects(data)
    found = image_objects(data, references_only=True)
    assert (found.sets, found.source) == (({"dog"},), REFERENCES)


def test_an_image_that_the_boxes_do_not_list_is_refused(tmp_path: Path) -> None:
    write_coco(tmp_path, ["dog"], ["dog"], images=1)
    with pytest.raises(UserError, match=r"does not list 1 of 2 images, such as 1\.jpg; CHAIR needs the boxes of all"):
        image_objects(data_set(tmp_path, ["A dog."], ["A dog."]))


def write_entities(folder: Path, *phrases: list[tuple[str, str]]) -> None:
    """Flickr30k Entities: phrases with their types, for each image."""
    rows = [
        {
            **{"image": f"{n}.jpg", "width": 9, "height": 9},
            "phrases": [{"phrase": words, "type": kind, "boxes": [[1, 1, 5, 5]]} for words, kind in group],
        }
        for n, group in enumerate(phrases)
    ]
    (folder / "boxes.jsonl").write_text("\n".join(map(json.dumps, rows)))


def test_objects_of_flickr8k_are_those_of_all_references_and_phrases(tmp_path: Path) -> None:
    write_entities(tmp_path, [("a yellow lab", "animals"), ("its rider", "people")], [])
    data = data_set(tmp_path, ["Grassy hill.", "A poodle."], ["A boy rides."])
    found = image_objects(data)
    assert found.source == ENTITIES
    captions = ["a dog and a person on the grass with an animal and a cat", "a child with a ball in a shirt"]
    score = chair(captions, found)
    hallucinated = [[mention.lemma for mention in caption.hallucinated] for caption in score.per_caption]
    assert hallucinated == [["cat"], ["ball", "shirt"]]
    assert score.instances == Share(3, 8)


def test_the_type_of_a_phrase_shows_its_object(tmp_path: Path) -> None:
    write_entities(tmp_path, [("someone unusual", "people")], [("someone unusual", "other")])
    first, second = image_objects(data_set(tmp_path, ["Fun."], ["Fun."])).sets
    assert "person" in first
    assert "man" not in first
    assert "dog" not in first
    assert not second - {"person", "human", "individual", "human being"}  # "someone" implies a person


def test_references_of_flickr8k_name_only_objects_of_their_images(flickr8k: Path) -> None:
    split = read(flickr8k).split("test")
    split = replace(split, images=split.images[:200])
    found = image_objects(split)
    for position in range(5):
        assert chair([image.captions[position] for image in split.images], found).sentence == 0
    other_images = chair([image.captions[0] for image in (*split.images[1:], split.images[0])], found)
    assert other_images.sentence > 0.8


def test_references_of_coco_name_only_objects_of_their_images(flickr8k: Path) -> None:
    folder = flickr8k.parent / "coco" / "test1000"
    if not folder.is_dir():
        pytest.skip(f"no images of COCO in {folder}")
    split = read(folder).split("test")
    found = image_objects(split)
    assert found.source == COCO
    assert chair([image.captions[0] for image in split.images], found).instance == 0
    assert chair([image.captions[0] for image in reversed(split.images)], found).instance > 0.5
