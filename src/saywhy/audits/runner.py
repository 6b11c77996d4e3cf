"""An audit run, and what its results file says."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from saywhy.audits import hallucination, image_ablation, localisation, risk, sanity, word_ablation
from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet
from saywhy.audits.results import NotApplicable, audits
from saywhy.data.datasets import digest as data_digest
from saywhy.errors import UserError, closest
from saywhy.explain.composites import DEFAULT, composite
from saywhy.files import write_text
from saywhy.provenance import machine

AUDITS = tuple(
    module.__name__.rsplit(".", 1)[1].replace("_", "-")
    for module in (image_ablation, word_ablation, localisation, hallucination, risk, sanity)
)


def chosen(name: str) -> tuple[str, ...]:
    """The audits of a name; "all" is all of them."""
    if name != "all" and name not in audits:
        raise UserError(f"unknown audit {name!r}: {closest(name, ('all', *AUDITS))}")
    return AUDITS if name == "all" else (name,)


def run(names: Sequence[str], bench: AuditContext) -> Iterator[dict[str, Any]]:
    """The results of audits, one after another; what they share is found out once."""
    began = time.monotonic()
    cases = EvidenceSet(bench)
    if not len(cases):
        raise UserError(f"{bench.data.root}: none of its {len(bench.data)} images could be read")
    explaining = time.monotonic() - began
    for name in names:
        began = time.monotonic()
        body: dict[str, Any]
        try:
            body = {"not_applicable": None, **audits[name](bench, cases)}
        except NotApplicable as why:
            body = {"not_applicable": str(why), "checks": []}
        seconds = {"explaining_seconds": round(explaining, 1), "seconds": round(time.monotonic() - began, 1)}
        yield {"audit": name, **about(bench, cases), **seconds, **body}


def about(bench: AuditContext, cases: EvidenceSet) -> dict[str, Any]:
    """All that an audit's numbers depend on."""
    captioner, split = bench.captioner, {image.split for image in bench.data.images}
    return {
        "model": bench.model.name,
        "captioner": captioner.name,
        "encoder": captioner.encoder.settings.name,
        "data": bench.data.name,
        "split": "+".join(sorted(split)),
        "images": len(cases),
        "of": bench.of or len(bench.data),
        "broken": len(bench.broken),
        "caption_words": sum(len(case.words) for _, case in cases),
        "decoding": str(bench.model.decoding),
        "composite": str(bench.rules),
        "objects": bench.objects.key,
        "digests": {"model": bench.key["model"], "data": data_digest(bench.data)},
        **machine(bench.device),
    }


def file_of(folder: Path, result: dict[str, Any]) -> Path:
    """Where a result belongs: by its model and audit, and by rules, split and number of images if not the usual."""
    parts = [result["model"]]
    if result["composite"] != str(composite(DEFAULT)):
        parts.append(result["composite"])
    if result["split"] != "test":
        parts.append(result["split"])
    if result["of"] != result["images"] + result["broken"]:
        parts.append(str(result["images"]))
    whose = re.sub(r"[^\w.-]+", "-", "-".join(parts))
    return folder / f"audit-{whose}-{result['audit']}.json"


def save(folder: Path, result: dict[str, Any]) -> Path:
    """Write a results file."""
    path = file_of(folder, result)
    write_text(path, json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return path
