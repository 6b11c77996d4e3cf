"""The tokeniser gives the same tokens as the Java PTBTokenizer of the caption metrics."""

from __future__ import annotations

import csv
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from saywhy.data.tokenizer import tokenize


@pytest.fixture(scope="session")
def java_tokenize(tmp_path_factory: pytest.TempPathFactory):
    """The Java tokeniser: from captions to their tokens."""
    ptb = pytest.importorskip("pycocoevalcap.tokenizer.ptbtokenizer")
    if shutil.which("java") is None:
        pytest.skip("the reference tokeniser needs Java, which is not installed")
    jar = Path(ptb.__file__).with_name(ptb.STANFORD_CORENLP_3_4_1_JAR)
    file = tmp_path_factory.mktemp("captions") / "captions.txt"

    def run(captions: list[str]) -> list[list[str]]:
        file.write_text("\n".join(captions), encoding="utf-8")
        program = ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase", str(file)]
        command = ["java", "-Dfile.encoding=UTF-8", "-cp", str(jar), *program]
        output = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        dropped = {"", *ptb.PUNCTUATIONS}
        return [[word for word in line.split(" ") if word not in dropped] for line in output.split("\n")]

    return run


@pytest.mark.data
def test_all_flickr8k_captions_have_the_tokens_of_the_java_tokeniser(flickr8k, java_tokenize):
    with (flickr8k / "captions.txt").open(newline="", encoding="utf-8") as file:
        captions = [row["caption"] for row in csv.DictReader(file)]
    assert len(captions) == 40_455
    different = [
        (caption, tokens, expected)
        for caption, expected in zip(captions, java_tokenize(captions), strict=True)
        if (tokens := tokenize(caption)) != expected
    ]
    assert different == []


_DIFFICULT = [
    "A man's dog isn't here; \"Rex\" (a collie) can't, won't and shouldn't be.",
    "The dogs' owners said it’s “fine” – or so…",
    "We cannot go, I'm gonna wait, gimme that, lemme see, 'tis late, they've left, y'all.",
    "Mr. and Mrs. Smith of St. Louis, Mo., met Dr. Jones Jr. vs. the U.S. at 5 p.m. etc.",
    "It is 10:30am, 3.5 ft, 10,000 people, $5.00, £5, 50% off, #1 and No. 5, -5 or +5.",
    "A 2-year-old in a well-worn T-shirt, size 1/2, in the '80s, 1980s, 80's and 2nd half",
    "AT&T and at&t, R&B, M&Ms, Lounge&Grill, a/c and/or b/w, rif=ding, a+b, c++, x_y",
    "Miss. Tex. miss. ill. Ill. a sign on Main St., the TV. the letter B. the end...",
    "www.dog.com, http://a.b/c?d=1, me@here.org @user #tag <b>bold</b> &amp; :-) ;)",
    "rock 'n' roll, rock'n'roll, o'clock, O'Brien, D'Angelo, ma'am, ol' 'em 'til cap'n",
    "a--b a---b ----- .... 6' tall 5'10\" foot- -round ..Asian .com ?what! why?! oh!!",
    "naïve café Zürich 日本語 Ελληνικά ½ cup ¢ € © ° « x »",
    "SHOUTED WORDS AREN'T LOST, NOR IS THE MAN'S HAT.",
]


def test_difficult_captions_have_the_tokens_of_the_java_tokeniser(java_tokenize):
    for caption, expected in zip(_DIFFICULT, java_tokenize(_DIFFICULT), strict=True):
        assert tokenize(caption) == expected, caption


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("", []),
        (" \n\t ", []),
        ("A dog\nruns .", ["a", "dog", "runs"]),
        ("it's", ["it", "'s"]),
        ("They can't!", ["they", "ca", "n't"]),
        ("cannot", ["can", "not"]),
        ("(hi)", ["-lrb-", "hi", "-rrb-"]),
        ("St. No. 5 no.", ["st.", "no.", "5", "no"]),
        ("dog😀cat", ["dog", "cat"]),
    ],
)
def test_examples_of_the_rules(caption, tokens):
    assert tokenize(caption) == tokens


def test_random_text_gives_tokens_without_spaces():
    rng = random.Random(0)
    characters = "aZ09 .,:;!?'\"’“”`-–—_/&@#$%^*()[]{}<>=+~|\\\n\t\r"
    characters += "\u00ad\u200b\ufeff\u0301éßİ½😀👩‍👩‍👧日\x00\x1c\ud800"
    for _ in range(3000):
        caption = "".join(rng.choices(characters, k=rng.randint(0, 25)))
        for word in tokenize(caption):
            assert word
            assert not any(letter.isspace() for letter in word), (caption, word)


def test_long_text_without_spaces_is_tokenised_in_reasonable_time():
    start = time.process_time()
    for part in ("+", ".a", "<a", "n't", "'", "a@", "1,", "ä-"):
        tokenize(part * 2000)
    assert time.process_time() - start < 10


def test_tokenising_twice_changes_nothing():
    caption = "two young guys with shaggy hair look at their hands while hanging out in the yard"
    assert tokenize(caption) == caption.split()
    assert tokenize(" ".join(tokenize(caption))) == tokenize(caption)
