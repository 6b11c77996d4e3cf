"""A sweep over guidance: captions with every setting, from features that are computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import audit_data
from saywhy.audits import guidance_sweep
from saywhy.audits.context import AuditContext
from saywhy.audits.guidance_sweep import SweptCaptions, settings_of, sweep
from saywhy.decoding import Decoding

GAMMAS = (1, 1.5, 4)


@pytest.fixture
def guided(data: Path, tmp_path: Path) -> AuditContext:
    """A context with a model whose captions change with guidance."""
    return audit_data.context(data, tmp_path / "cache", "ada-lstm", split="", batch_size=3)


@pytest.fixture
def settings(guided: AuditContext) -> list[Decoding]:
    return settings_of(guided.model.decoding, GAMMAS)


def words(swept: Sequence[SweptCaptions]) -> list[dict[str, list[str]]]:
    return [{name: [*caption] for name, caption in captions.words.items()} for captions in swept]


def test_captions_are_those_of_the_model_with_each_setting(guided, settings) -> None:
    swept = sweep(guided, settings, 0)
    paths = [image.path for image in guided.data.images]
    for captions, gamma in zip(swept, GAMMAS, strict=True):
        expected = [[*caption.words] for caption in guided.model.captions(paths, guidance=gamma)]
        assert [[*captions.words[image.name]] for image in guided.data.images] == expected
    assert swept[0].words != swept[-1].words, "guidance changes captions"


def test_the_image_share_is_that_of_the_explanation_of_the_caption(guided, settings) -> None:
    swept = sweep(guided, settings, 2)
    for captions in swept:
        assert len(captions.image_share) == 2
        for name, share in captions.image_share.items():
            image = next(image for image in guided.data.images if image.name == name)
            caption = " ".join(captions.words[name])
            explanation = guided.model.explain(image.path, caption=caption, methods=("lrp",), composite="epsilon-plus")
            expected = [word.budget.image_share for word in explanation.words]
            np.testing.assert_allclose(share, expected, atol=1e-4)


def test_an_image_is_encoded_once_for_all_settings(guided, settings, monkeypatch) -> None:
    encoded: list[int] = []
    encode = AuditContext.encode

    def counted(context, batch):
        encoded.append(len(batch))
        return encode(context, batch)

    monkeypatch.setattr(AuditContext, "encode", counted)
    sweep(guided, settings, 0)
    assert sum(encoded) == len(guided.data.images)


def test_an_interrupted_sweep_continues_where_it_stopped(guided, settings, monkeypatch) -> None:
    decode, decoded = guidance_sweep.decode, 0

    def interrupted(captioner, features, *arguments, **options):
        nonlocal decoded
        if decoded == 6:  # after one batch of three images with three settings
            raise KeyboardInterrupt
        decoded += 1
        return decode(captioner, features, *arguments, **options)

    monkeypatch.setattr(guidance_sweep, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(guided, settings, 0)
    rows = 0

    def counted(captioner, features, *arguments, **options):
        nonlocal rows
        rows += len(features)
        return decode(captioner, features, *arguments, **options)

    monkeypatch.setattr(guidance_sweep, "decode", counted)
    resumed = words(sweep(guided, settings, 0))
    assert rows == (len(guided.data.images) - 6) * len(settings)
    fresh = replace(guided, cache=guided.cache / "fresh")
    assert resumed == words(sweep(fresh, settings, 0))


def test_another_setting_costs_its_own_decoding_only(guided, settings, monkeypatch) -> None:
    sweep(guided, settings, 0)
    decode, seen = guidance_sweep.decode, []

    def recorded(captioner, features, setting, **options):
        seen.append(setting.guidance)
        return decode(captioner, features, setting, **options)

    monkeypatch.setattr(guidance_sweep, "decode", recorded)
    more = settings_of(guided.model.decoding, (*GAMMAS, 7))
    assert words(sweep(guided, more, 0))[:3] == words(sweep(guided, settings, 0))
    assert set(seen) == {7}


def test_an_unreadable_image_is_left_out_of_all_settings(data: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    audit_data.write_data(broken)
    victim = next(broken.rglob("pink.png"))
    victim.write_bytes(b"no image")
    errors: list[object] = []
    context = audit_data.context(broken, tmp_path / "cache", on_unreadable=errors.append)
    swept = sweep(context, settings_of(context.model.decoding, (1, 2)), 3)
    assert len(errors) == 1
    for captions in swept:
        assert victim.name not in captions.words
        assert captions.image_share.keys() <= captions.words.keys()
        assert len(captions.words) == len(context.data.images) - 1


def test_settings_are_every_gamma_every_gamma_with_the_language_model_and_every_pair_of_weights() -> None:
    settings = settings_of(Decoding(beam=2, guidance=9), (1, 2), "lm", [(5, 2.5), (1, 0)], "prompt.txt")
    assert [(setting.guidance, setting.lm, setting.lm_weight, setting.lm_prompt) for setting in settings] == [
        (1, "", None, ""),
        (2, "", None, ""),
        (2, "lm", None, "prompt.txt"),
        (1, "lm", (5, 2.5), "prompt.txt"),
        (1, "lm", (1, 0), "prompt.txt"),
    ]
    kinds = [SweptCaptions(setting, {}, {}).kind for setting in settings]
    assert kinds == ["classifier-free", "classifier-free", "mutual information", "language model", "language model"]
    assert {setting.beam for setting in settings} == {2}
