"""Cached results are reused only if nothing that they depend on has changed; stages report their progress."""

from __future__ import annotations

import dataclasses
import shutil
from copy import deepcopy

import numpy as np
import pytest
import torch

import audit_data
from saywhy.audits.context import AuditContext, Progress
from saywhy.audits.evidence import EvidenceSet
from saywhy.data.object_words import ObjectWords
from saywhy.decoding import Decoding
from saywhy.errors import UserError
from saywhy.explain.composites import composite
from saywhy.inference.model import Model, load
from saywhy.language_models import SavedLanguageModel, build
from saywhy.pretrained import HubSource

ARRAYS = {"maps": np.ones((3, 3))}


def change_weight(context: AuditContext) -> AuditContext:
    model = deepcopy(context.model)
    with torch.no_grad():
        next(model.captioner.parameters()).flatten()[0] += 1e-6
    return dataclasses.replace(context, model=model)


def change_decoding(context: AuditContext) -> AuditContext:
    model = deepcopy(context.model)
    model.decoding = Decoding(beam=7)
    return dataclasses.replace(context, model=model)


def change_object_words(context: AuditContext) -> AuditContext:
    table = context.cache.parent / "objects.txt"
    table.write_text("[animals]\ndog\n")
    return dataclasses.replace(context, object_words=ObjectWords.read(table))


def change_preprocessing(context: AuditContext) -> AuditContext:
    model = deepcopy(context.model)
    model.preprocessing = dataclasses.replace(model.preprocessing, fit="squash")
    return dataclasses.replace(context, model=model)


def change_composite(context: AuditContext) -> AuditContext:
    return dataclasses.replace(context, composite=composite("paper"))


def change_normalisation(context: AuditContext) -> AuditContext:
    """The encoder subtracts another mean from its pixels, which `config.json` can set."""
    model = deepcopy(context.model)
    encoder = model.captioner.encoder
    encoder.convention = dataclasses.replace(encoder.convention, mean=(0.0, 0.0, 0.0))
    encoder.settings = dataclasses.replace(encoder.settings, convention=encoder.convention)
    encoder.mean.zero_()
    return dataclasses.replace(context, model=model)


CHANGES = [
    change_weight,
    change_decoding,
    change_object_words,
    change_preprocessing,
    change_composite,
    change_normalisation,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_or_setting_does_not_reuse_cached_results(context, change):
    context.stage_cache("stage").save("dog.jpg", ARRAYS)
    assert not change(context).stage_cache("stage").has("dog.jpg")
    copy = dataclasses.replace(context, model=deepcopy(context.model), batch_size=9)
    assert copy.stage_cache("stage").has("dog.jpg")


def test_the_digest_of_a_model_is_that_of_its_copy_on_disk(tmp_path):
    audit_data.saved().save(tmp_path / "model")
    digest = audit_data.model().digest()
    assert load(tmp_path / "model", "cpu").digest() == digest != audit_data.model(seed=4).digest()


def test_the_digest_of_a_model_depends_on_what_it_is_asked():
    sources = [HubSource("hf:user/model", prompt) for prompt in (None, "What is it?", "Where is it?")]
    digests = {Model(audit_data.saved(), source=source).digest() for source in (None, *sources)}
    assert len(digests) == 3


def test_captions_are_those_of_a_model_that_a_language_model_guides_by_default(context, tmp_path):
    def guided(seed: int) -> AuditContext:
        torch.manual_seed(seed)
        vocabulary = context.model.vocabulary
        lm = build("lstm", len(vocabulary), width=8, hidden=8)
        torch.nn.init.normal_(lm.b, std=5.0)
        SavedLanguageModel("lm", lm, vocabulary).save(tmp_path / "lm")
        model = Model(audit_data.saved())
        model.decoding = model.decoding_with(lm=str(tmp_path / "lm"), lm_weight=(1.0, 0.0))
        return dataclasses.replace(context, model=model)

    batch = next(context.batches(context.data.images))
    with torch.inference_mode():
        features = context.encode(batch)
        plain, first, second = (one.captions(features) for one in (context, guided(0), guided(1)))
    assert plain != first != second
    keys = [guided(0).stage_cache("stage").folder, guided(1).stage_cache("stage").folder]
    assert len({*keys, guided(1).stage_cache("stage").folder, context.stage_cache("stage").folder}) == 3


def test_the_key_of_an_image_depends_on_its_name_and_content(data, tmp_path):
    def keys(folder):
        context = audit_data.context(folder, tmp_path)
        return {image.name: context.image_key(image) for image in context.data.images}

    folder = shutil.copytree(data, tmp_path / "data")
    (folder / "grey.png").write_bytes((folder / "pink.png").read_bytes())
    before, after = keys(data), keys(folder)
    assert [name for name in before if before[name] != after[name]] == ["grey.png"]
    assert len(set(after.values())) == 3


def test_damaged_evidence_is_computed_again_and_no_other(context):
    EvidenceSet(context)
    files = sorted(context.cache.glob("evidence-*/**/*.npz"))
    assert len(files) == 3
    times = {path: path.stat().st_mtime_ns for path in files}
    contents = files[1].read_bytes()
    files[1].write_bytes(contents[:100])
    EvidenceSet(context)
    assert files[1].read_bytes() == contents
    assert [path for path in files if path.stat().st_mtime_ns != times[path]] == [files[1]]


def test_a_stage_reports_its_start_every_batch_and_its_end(context):
    events: list[Progress] = []
    context.on_progress = events.append
    EvidenceSet(context)
    assert {event.stage for event in events} == {"explaining captions"}
    assert [(event.done, event.total, event.finished) for event in events] == [
        *((done, 3, False) for done in range(4)),
        (3, 3, True),
    ]
    seconds = [event.seconds for event in events]
    assert seconds == sorted(seconds)
    assert seconds[0] == 0 < seconds[-1]
    events.clear()
    EvidenceSet(context)
    assert [(event.done, event.finished) for event in events] == [(3, False), (3, True)]


def test_too_little_gpu_memory_is_one_line_with_advice(context, monkeypatch):
    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("saywhy.audits.evidence.decoder_evidence", fail)
    with pytest.raises(UserError, match=r"out of GPU memory: give a smaller --batch-size$"):
        EvidenceSet(context)


def test_region_features_sampling_and_images_without_captions_are_refused(context, data, tmp_path):
    for decoding in ({"method": "sample"}, {"attention": "sampled"}):
        with pytest.raises(UserError, match="audits need deterministic decoding"):
            audit_data.context(data, tmp_path, model=audit_data.model(**decoding))
    images = tuple(dataclasses.replace(image, captions=()) for image in context.data.images)
    with pytest.raises(UserError, match=r"grey\.png has no reference caption"):
        dataclasses.replace(context, data=dataclasses.replace(context.data, images=images))
