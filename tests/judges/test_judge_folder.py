"""A judge's folder holds all that is needed to judge, and is not confused with other models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tiny
from saywhy import language_models
from saywhy.captioners.model_folder import load as load_captioner
from saywhy.errors import UserError
from saywhy.judges import load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.saved_judge().save(tmp_path / "judge")
    return tmp_path / "judge"


def test_a_saved_judge_gives_equal_embeddings(folder):
    before, after = tiny.saved_judge(), load(folder)
    assert (after.name, after.encoder) == ("tiny-judge", "timm:test_efficientnet")
    assert after.vocabulary == before.vocabulary
    assert after.preprocessing == before.preprocessing
    assert not after.model.training
    with torch.inference_mode():
        for embed, batch in (("embed_images", tiny.pixels(3)), ("embed_captions", tiny.captions(3))):
            assert torch.equal(getattr(before.model, embed)(batch), getattr(after.model, embed)(batch))


def test_other_kinds_of_models_are_refused_in_one_line(folder, tmp_path):
    with pytest.raises(UserError, match="is a judge, not a captioner: give the folder of a captioner"):
        load_captioner(folder)
    with pytest.raises(UserError, match="is a judge, not a language-model"):
        language_models.load(folder)
    with pytest.raises(UserError, match=r"no judge at .*gone: give a folder that `saywhy train-judge` wrote"):
        load(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no config\.json"):
        load(tmp_path / "empty")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dual_encoder": {"width": 32, "heads": 2}}, "does not fit config.json beside it"),
        ({"dual_encoder": {"depth": 3}}, "not a configuration of a judge"),
        ({"dual_encoder": {"pooling": "max"}}, "unknown pooling 'max'"),
        ({"dual_encoder": {"width": 10**9, "heads": 2}}, "far larger than any"),
        ({"encoder": None}, "not a configuration of a judge"),
        ({"preprocessing": {"size": 1}}, "size 1 is not in"),
        ({"kind": "captioner"}, "is a captioner, not a judge"),
    ],
    ids=str,
)
def test_a_changed_configuration_is_refused_in_one_line(folder, change, reason):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=reason) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
