"""CLIP models embed as the libraries' own code does; what is no CLIP model is refused in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from saywhy.errors import UnreadableImage, UserError
from saywhy.metrics.clip_models import load_clip
from saywhy.metrics.clip_score import ClipScorer
from saywhy.metrics.retrieval import retrieval

transformers = pytest.importorskip("transformers")

import tiny_transformers  # noqa: E402
from tiny_transformers import SIZE  # noqa: E402

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP
TEXTS = ["a dog runs", "two dogs", "a photo depicts the man on grass .", "a dog runs", "cat"]


@pytest.fixture(scope="module", autouse=True)
def _single_thread(one_thread: None) -> None:
    """The models are tiny."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "clip"
    tiny_transformers.save_clip(folder)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Wide, tall, square, and larger than a batch."""
    rng, paths = np.random.default_rng(0), []
    for number, size in enumerate([(20, 40), (50, 16), (16, 16), *[(17, 19)] * 31]):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(paths[-1])
    return paths


def normalised(features: torch.Tensor) -> np.ndarray:
    return (features / features.norm(dim=1, keepdim=True)).detach().double().numpy()


def pixels(path: Path) -> torch.Tensor:
    """CLIP's preprocessing by Pillow: bicubic resize of the shorter side, centre crop, standardised."""
    image = Image.open(path)
    scale = SIZE / min(image.size)
    image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = round((image.width - SIZE) / 2), round((image.height - SIZE) / 2)
    array = np.asarray(image.crop((left, top, left + SIZE, top + SIZE)), np.float32) / 255
    return torch.tensor((array - np.float32(MEAN)) / np.float32(STD)).permute(2, 0, 1)[None]


def test_texts_are_embedded_as_the_model_embeds_each_alone(folder: Path) -> None:
    model, tokenizer = transformers.CLIPModel.from_pretrained(folder), tiny_transformers.tokenizer()
    pooled = [model.text_model(torch.tensor([tokenizer(text)["input_ids"]])).pooler_output for text in TEXTS]
    expected = normalised(model.text_projection(torch.cat(pooled)))
    assert load_clip(folder).embed_texts(TEXTS) == pytest.approx(expected, abs=1e-5)


def test_images_are_resized_with_a_bicubic_filter_and_cropped_at_the_centre(folder: Path, photos: list[Path]) -> None:
    model = transformers.CLIPModel.from_pretrained(folder)
    pooled = model.vision_model(torch.cat([pixels(path) for path in photos[:3]])).pooler_output
    expected = normalised(model.visual_projection(pooled))
    assert load_clip(folder).embed_images(photos[:3]) == pytest.approx(expected, abs=1e-3)


def test_batches_do_not_change_embeddings(folder: Path, photos: list[Path]) -> None:
    model, reports = load_clip(folder), []
    together = model.embed_images(photos, lambda *done: reports.append(done))
    assert together == pytest.approx(np.concatenate([model.embed_images([path]) for path in photos]), abs=1e-5)
    assert reports == [(32, 34), (34, 34)]


def test_equal_texts_have_equal_embeddings_and_long_ones_are_cut(folder: Path) -> None:
    embedded = load_clip(folder).embed_texts([*TEXTS, "a dog " * 50])
    assert (embedded[0] == embedded[3]).all()
    assert np.linalg.norm(embedded, axis=1) == pytest.approx(np.ones(6))


def test_a_model_scores_and_retrieves(folder: Path, photos: list[Path]) -> None:
    scorer = ClipScorer(load_clip(folder))
    scorer.update(TEXTS, photos[:5], [["a cat"], *[["two dogs .", "the man"]] * 4])
    assert 0 <= scorer.compute().clip_score <= 2.5
    assert retrieval(scorer.captions, scorer.images).recall[1] == 1


def test_a_model_is_named_after_its_folder_without_a_path(folder: Path) -> None:
    assert load_clip(folder).name == "clip"


def test_unreadable_images_are_named(folder: Path, photos: list[Path]) -> None:
    photos[1].write_text("no image")
    with pytest.raises(UnreadableImage, match=r"1\.png: not an image"):
        load_clip(folder).embed_images(photos)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("gone", "no such folder; give the folder of a CLIP model of Hugging Face, or hf:NAME"),
        ("bert", "not a CLIP model that can be loaded .it is of the type bert, not clip; open_clip has other"),
        ("empty", "not a CLIP model that can be loaded"),
    ],
)
def test_what_is_no_clip_model_is_refused_in_one_line(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    tiny_transformers.save_bert(tmp_path / "bert")
    with pytest.raises(UserError, match=message) as caught:
        load_clip(tmp_path / place)
    assert "\n" not in str(caught.value)


def test_a_value_of_the_wrong_type_is_found_before_images_are_captioned(tmp_path: Path) -> None:
    tiny_transformers.save_clip(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"image_mean": "grey"}))
    with pytest.raises(UserError, match="not a CLIP model that can be loaded"):
        load_clip(tmp_path)


def test_pickled_weights_of_clip_are_refused(tmp_path: Path) -> None:
    model = tiny_transformers.save_clip(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="not a CLIP model that can be loaded"):
        load_clip(tmp_path)


def test_not_finite_weights_are_an_error_and_not_a_score(tmp_path: Path, photos: list[Path]) -> None:
    model = tiny_transformers.save_clip(tmp_path)
    model.visual_projection.weight.data[:] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="images: 2 of 2 embeddings are zero or not finite"):
        load_clip(tmp_path).embed_images(photos[:2])


def test_without_transformers_one_line_names_its_extra(folder: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r'a CLIP model needs transformers: pip install "saywhy\[hf\]"'):
        load_clip(folder)


OPEN_CLIP = {
    "embed_dim": 6,
    "vision_cfg": {"image_size": SIZE, "layers": 2, "width": 64, "patch_size": 8},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 2},
}


@pytest.fixture
def tiny_open_clip(tmp_path: Path):
    """A random model of open_clip, known to it by the name "tiny", and its weights in two files."""
    open_clip = pytest.importorskip("open_clip")
    (tmp_path / "tiny.json").write_text(json.dumps(OPEN_CLIP))
    open_clip.add_model_config(tmp_path)
    torch.manual_seed(0)
    model = open_clip.create_model("tiny").eval()
    weights = tmp_path / "weights.safetensors"
    import safetensors.torch

    safetensors.torch.save_file({name: value.contiguous() for name, value in model.state_dict().items()}, weights)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    return model, weights


def test_models_of_open_clip_embed_as_they_do_alone(tiny_open_clip, photos: list[Path]) -> None:
    import open_clip

    model, weights = tiny_open_clip
    loaded = load_clip(f"open_clip:tiny/{weights}")
    assert loaded.name == "open_clip:tiny/weights.safetensors"
    tokens = torch.cat([open_clip.tokenize([text], context_length=12) for text in TEXTS])
    assert loaded.embed_texts(TEXTS) == pytest.approx(normalised(model.encode_text(tokens)), abs=1e-5)
    images = torch.cat([pixels(path) for path in photos[:3]])
    assert loaded.embed_images(photos[:3]) == pytest.approx(normalised(model.encode_image(images)), abs=1e-3)


def test_a_folder_of_open_clip_is_loaded(tiny_open_clip, tmp_path: Path) -> None:
    _, weights = tiny_open_clip
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": OPEN_CLIP, "preprocess_cfg": {}}))
    weights.rename(folder / "open_clip_model.safetensors")
    loaded = load_clip(f"open_clip:local-dir:{folder}")
    assert loaded.name == "open_clip:local-dir:mine"
    assert loaded.embed_texts(["a dog"]).shape == (1, 6)
    (folder / "open_clip_model.safetensors").unlink()
    with pytest.raises(UserError, match="not a model of open_clip that can be loaded"):
        load_clip(f"open_clip:local-dir:{folder}")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("open_clip:ViT-B-32", "give open_clip:ARCH/PRETRAINED, such as open_clip:ViT-B-32/openai"),
        ("open_clip:ViT-B-99/openai", "not a model of open_clip that can be loaded .*ViT-B-99"),
        ("open_clip:tiny/unknown", "'unknown' is not a known tag or valid file path"),
        ("open_clip:tiny/{folder}/weights.pt", "give weights as a .safetensors file; other files are not read"),
        ("open_clip:ViT-B-32/{folder}/weights.safetensors", "not a model of open_clip that can be loaded"),
        ("open_clip:local-dir:{folder}", "not a model of open_clip that can be loaded"),
    ],
)
def test_what_open_clip_cannot_load_is_refused_in_one_line(
    tiny_open_clip, tmp_path: Path, location: str, message: str, capfd
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_clip(location.format(folder=tmp_path))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_weights_of_openai_get_their_activation(tiny_open_clip, monkeypatch) -> None:
    import open_clip

    options = {}

    def create(*arguments, **keywords):
        options.update(keywords)
        raise RuntimeError("stop")

    monkeypatch.setattr(open_clip, "create_model_from_pretrained", create)
    for tag, quick_gelu in (("openai", True), ("laion2b_s34b_b79k", False)):
        with pytest.raises(UserError, match="stop"):
            load_clip(f"open_clip:ViT-B-32/{tag}")
        assert options["force_quick_gelu"] is quick_gelu
        assert options["weights_only"] is True


def test_without_open_clip_one_line_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(UserError, match=r'needs open_clip: pip install "saywhy\[clip\]"'):
        load_clip("open_clip:ViT-B-32/openai")
