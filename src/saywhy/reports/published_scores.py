"""Scores that papers report, for comparison with the measured ones."""

from __future__ import annotations

from dataclasses import dataclass

from saywhy.viz.tables import MISSING, Table, markdown

NOT_MEASURED = "Copied from the papers, not measured here."


@dataclass(frozen=True)
class Published:
    """One row of a paper's table, in percent and with the digits printed there."""

    system: str
    encoder: str
    bleu: tuple[str, ...]  # BLEU-1 to BLEU-4
    meteor: str
    rouge_l: str
    cider: str
    measured_on: str


_NO_BLEU = (MISSING,) * 4
_XU = "Show, attend and tell (Xu et al. 2015)"
_SUN = "LRP paper (Sun et al. 2021)"
_KORNBLITH = "guidance paper (Kornblith et al. 2023): CoCa-Base"


def _xu(attention: str, bleu: str, meteor: str, split: str = "") -> Published:
    measured_on = f"{split}BLEU without brevity penalty"
    return Published(
        f"{_XU}: {attention} attention", "VGG-19", tuple(bleu.split()), meteor, MISSING, MISSING, measured_on
    )


def _sun(model: str, meteor: str, rouge_l: str, cider: str) -> Published:
    return Published(f"{_SUN}: {model}", "VGG-16", _NO_BLEU, meteor, rouge_l, cider, "val2017")


def _kornblith(form: str, bleu4: str, meteor: str, rouge_l: str, cider: str) -> Published:
    measured_on = "Karpathy test; greedy, no guidance; first trained on JFT-5B and ALIGN"
    return Published(f"{_KORNBLITH}, {form}", "ViT-B", (*_NO_BLEU[:3], bleu4), meteor, rouge_l, cider, measured_on)


PUBLISHED = {
    "flickr8k": (
        _xu("soft", "67.0 44.8 29.9 19.5", "18.93"),
        _xu("hard", "67.0 45.7 31.4 21.3", "20.30"),
    ),
    "coco": (
        _xu("soft", "70.7 49.2 34.4 24.3", "23.90", "its own split; "),
        _xu("hard", "71.8 50.4 35.7 25.0", "23.04", "its own split; "),
        Published(
            *("tutorial by sgrvinod: soft attention", "ResNet-101", (*_NO_BLEU[:3], "33.3"), MISSING, MISSING, MISSING),
            "Karpathy test; beam 5, BLEU by NLTK, unknown words also replaced in the references",
        ),
        _sun("Ada-LSTM", "25.1", "52.9", "96.2"),
        _sun("MH-FC", "25.5", "53.1", "97.1"),
        _sun("Ada-LSTM with SCST", "26.10", "54.34", "107.03"),
        _sun("MH-FC with SCST", "26.45", "54.42", "108.16"),
        _kornblith("bottleneck", "36.1", "30.5", "58.2", "126.1"),
        _kornblith("attention pooling", "36.8", "30.9", "59.0", "130.3"),
    ),
}
"""Rows by the name of the data set."""


def published_section(data: str) -> str:
    """The published scores on a data set; empty if there are none."""
    rows = [
        (row.system, row.encoder, *row.bleu, row.meteor, row.rouge_l, row.cider, row.measured_on)
        for row in PUBLISHED.get(data.lower(), ())
    ]
    if not rows:
        return ""
    head = ("system", "encoder", "B1", "B2", "B3", "B4", "METEOR", "ROUGE-L", "CIDEr", "measured on")
    table = Table(head, rows, text_columns=(0, 1, len(head) - 1), caption=NOT_MEASURED)
    return f"### Published scores, for comparison\n\n{markdown(table)}"
