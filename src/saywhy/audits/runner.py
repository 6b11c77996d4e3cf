"""Run audits and write their results files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from saywhy.audits.audit import audits
from saywhy.audits.context import AuditContext, NotApplicable, Progress
from saywhy.audits.evidence import EvidenceSet
from saywhy.data.datasets import digest as data_digest
from saywhy.errors import UserError, did_you_mean
from saywhy.explain.composites import DEFAULT, composite
from saywhy.files import write_text
from saywhy.provenance import machine


def select(name: str) -> tuple[str, ...]:
    """The audits of a name; "all" selects every audit that tests explanations."""
    if name == "all":
        return tuple(name for name in audits if audits[name].tests_explanations)
    if name not in audits:
        raise UserError(f"unknown audit {name!r}: {did_you_mean(name, ('all', *audits))}")
    return (name,)


def run(names: Sequence[str], context: AuditContext) -> Iterator[dict[str, Any]]:
    """The results of audits, one after another; the evidence is computed once for all."""
    start = time.monotonic()
    explains = any(audits[name].needs_evidence for name in names)
    evidence = EvidenceSet(context, empty=not explains)
    if explains and not len(evidence):
        raise UserError(f"{context.data.root}: none of its {len(context.data)} images can be read; check their format")
    explanation_seconds = round(time.monotonic() - start, 1)
    for name in names:
        start, images = time.monotonic(), len(evidence) if explains else len(context.data)
        context.on_progress(Progress(name, 0, images))
        body: dict[str, Any]
        try:
            body = {"not_applicable": None, **audits[name]().run(context, evidence)}
        except NotApplicable as reason:
            body = {"not_applicable": str(reason), "checks": []}
        seconds = time.monotonic() - start
        context.on_progress(Progress(name, images, images, seconds, finished=True))
        timing = {"explanation_seconds": explanation_seconds, "seconds": round(seconds, 1)}
        yield {"audit": name, **settings(context, evidence), **timing, **body}


def settings(context: AuditContext, evidence: EvidenceSet) -> dict[str, Any]:
    """Everything that the numbers of an audit depend on."""
    captioner, splits = context.captioner, {image.split for image in context.data.images}
    return {
        "model": context.model.name,
        "captioner": captioner.name,
        "encoder": captioner.encoder.settings.name,
        "data": context.data.name,
        "split": "+".join(sorted(splits)),
        "images": len(evidence) or len(context.data) - len(context.unreadable),
        "split_images": context.split_images or len(context.data),
        "unreadable": len(context.unreadable),
        "caption_words": sum(len(caption.words) for _, caption in evidence),
        "decoding": str(context.model.decoding),
        **({"style": context.style} if context.style else {}),
        "composite": str(context.composite),
        "digests": {
            "model": context.key["model"],
            "data": data_digest(context.data),
            "object_words": context.object_words.key,
        },
        **machine(context.device),
    }


def results_path(folder: Path, result: dict[str, Any]) -> Path:
    """The path of a results file: model, style, audit; LRP rules, split and number of images if not the default."""
    parts = [result["model"], *([result["style"]] if result.get("style") else [])]
    if result["composite"] != str(composite(DEFAULT)):
        parts.append(result["composite"])
    if result["split"] != "test":
        parts.append(result["split"])
    if result["split_images"] != result["images"] + result["unreadable"]:
        parts.append(str(result["images"]))
    stem = re.sub(r"[^\w.-]+", "-", "-".join(parts))
    return folder / f"audit-{stem}-{result['audit']}.json"


def save(folder: Path, result: dict[str, Any]) -> Path:
    """Write a results file."""
    path = results_path(folder, result)
    write_text(path, json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return path
