"""From captions to tokens, and from tokens to the ids of a captioner's vocabulary.

`tokenize` is the tokenizer of the caption metrics. Published scores (BLEU, METEOR, ROUGE-L, CIDEr) are computed on Penn
Treebank tokens: the Stanford `PTBTokenizer` with `-preserveLines -lowerCase`, after which 17 punctuation tokens are
dropped. This module gives the same tokens without Java. Like the original it is a longest-match scanner: at each
position every rule is tried and the longest match counts, of equally long ones the first rule.

Its irregularities are those of the original, because scores are comparable only on the same tokens: brackets become
`-lrb-` and `-rrb-` and are not dropped, because the original drops only their upper-case spelling; `AT&T` is one token
but `at&t` is three; `£` is `#`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from saywhy.errors import UserError, did_you_mean
from saywhy.files import read_json, write_text

MARKERS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(len(MARKERS))
STYLE_MARKER = re.compile(r"<style:(?P<style>[\w.-]+)>")

PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])
"""Tokens that are dropped; without brackets, see above."""

# Contractions that the Penn Treebank splits into two tokens.
_ASSIMILATED = {
    "cannot": ("can", "not"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "wanna": ("wan", "na"),
    "gimme": ("gim", "me"),
    "lemme": ("lem", "me"),
    "'tis": ("'t", "is"),
    "'twas": ("'t", "was"),
}

# The Treebank's spelling of characters outside its character set.
_SPELLING = str.maketrans(
    {
        "(": "-lrb-",
        ")": "-rrb-",
        "[": "-lsb-",
        "]": "-rsb-",
        "{": "-lcb-",
        "}": "-rcb-",
        '"': "''",
        "“": "``",
        "”": "''",
        "«": "``",
        "»": "''",
        "‘": "`",
        "’": "'",
        "‹": "`",
        "›": "'",
        "–": "--",
        "—": "--",
        "―": "--",
        "…": "...",
        "£": "#",
        "€": "$",
        "¤": "$",
        "¢": "cents",
        "¼": "1/4",
        "½": "1/2",
        "¾": "3/4",
        "⅓": "1/3",
        "⅔": "2/3",
    }
)
_ENTITY = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "''", "&apos;": "'"}

# Abbreviations keep their full stop. These always ...
_ABBREVIATIONS = (
    "adj adm adv al ala alex apr ariz assn assoc asst atty aug ave bancorp bhd bldg blvd brig bros calif "
    "capt cf cie cmdr co col colo comdr conn corp cos cpl ct dak dec dept det dr drs elec ens esq est etc "
    "ext feb fla fri ft ga gen gov govs hon inc ind insp intl invt jan jos jr jul jun kan kans ky lieut "
    "lt ltd maj mar md messrs mfg mich minn mlle mme mo mon mont mr mrs ms msgr mt mtg natl neb nev nov "
    "oct okla penn pfc ph plc ppte ppty pres prof profs pte ptes pty ptys pvt rd rep reps rev rt sen sens "
    "sep sept seq sfc sgt spc sq sr st ste supt supts sys tel tenn thu thurs tue tues univ va vs vt wed "
    "wis wisc wm wyo"
)
# ... these only with a capital letter, because in lower case they are words (`miss`, `ill`, `ore`) ...
_STATES = "Ark Az Del Ill La Mass Miss Ore Pa Tex Wash"
# ... and these only before a number, as in `No. 5`.
_NUMBERED = "art ca fig figs no nos op pp prop"


def _any_of(words: str) -> str:
    return "|".join(sorted(words.split(), key=len, reverse=True))  # longest first: `profs` before `prof`


_QUOTE = "['’]"
_LETTER = r"[^\W\d_]"
_LETTERS = rf"{_LETTER}+"
_WORD = r"[^\W_]+"
_NUMBER = r"(?:\d*(?:[.:,]\d+)+|\d+)"
_STEM = rf"{_LETTERS}(?:\.{_LETTER}[^\W_]*)+"  # hello.world, a.b1: words with a full stop inside

# The lookahead of a rule counts towards the length of its match, as in the original: this is why `don't` becomes
# `do n't` and not `don 't`.
_RULES: list[tuple[str, str]] = [
    # (token, lookahead)
    (rf"{_WORD}(?:[-_/]{_WORD})*", ""),  # dog, well-dressed, and/or, a_b, 2-year-old, 1980s
    (rf"{_STEM}(?:-{_WORD})*", ""),  # word.word, www.dog.com, t.v
    (rf"[-+]?{_NUMBER}", ""),  # 3.5, 10,000, 10:30, -5, .5
    (rf"{_NUMBER}(?:-{_WORD})+", ""),  # 2.5-mile
    (rf"{_LETTER}(?:\.{_LETTER})*\.(?:-{_WORD})*", ""),  # a., u.s., u.s.-based
    (rf"(?i:ph\.d|{_any_of(_ABBREVIATIONS)})\.(?:-{_WORD})*", ""),  # mr., st.
    (rf"(?:{_any_of(_STATES)}|{_any_of(_STATES.upper())})\.", ""),
    (rf"(?i:{_any_of(_NUMBERED)})\.", r"\ ?\d"),  # the number may be in the next chunk, see `tokenize`
    (rf"{_LETTERS}\.", "[,;:]"),  # before a comma a full stop marks an abbreviation
    (r"[A-Z]+(?:&[A-Z]+)+", ""),  # AT&T, R&B; not in lower case
    (rf"{_LETTER}+?", rf"(?i:n{_QUOTE}t)(?![^\W_])"),  # the verb of a negation: is|n't, ca|n't
    (rf"(?i:n{_QUOTE}t)", ""),
    (rf"{_QUOTE}(?i:s|m|d|re|ve|ll)", r"(?![^\W_])"),  # clitics: dog|'s, they|'re
    (rf"{_QUOTE}(?i:em|cause|til|n{_QUOTE})", ""),  # clipped words: 'em, 'cause, rock 'n' roll
    (rf"{_QUOTE}[nN]", r"(?![^\W_])"),
    (rf"{_QUOTE}(?i:tis|twas)", r"(?![^\W_])"),
    (rf"{_QUOTE}\d0s", ""),  # '80s
    (rf"{_QUOTE}\d\d", r"(?:\ |$)"),  # '08
    (rf"[DNOLdnol]{_QUOTE}{_LETTERS}", ""),  # o'clock, l'eau, d'angelo
    (rf"[A-HJ-XZ]{_QUOTE}[A-Z]{_LETTER}*", ""),  # M'Coy
    (rf"[YJyj]{_QUOTE}", _LETTER),  # y'|all
    (
        rf"(?i:ma{_QUOTE}ams?|c{_QUOTE}mon|ne{_QUOTE}er|cap{_QUOTE}n|(?:ol|dunkin|somethin){_QUOTE})",
        r"(?![^\W_])",
    ),
    (r"https?://[^\s\"<>]+[^\s\"<>.,;:!?)'}\]]", ""),
    (r"[\w.+-]{0,63}\w@\w(?:[\w.-]*\w)?", ""),  # an e-mail address
    (r"@[A-Za-z_]\w*|\#[A-Za-z_]+", ""),  # @user, #tag
    (r"</?[A-Za-z!][^<>]*>", ""),  # a tag
    (r"[:;=]-?o?[()DPp\]]|\^_\^", ""),  # :-) and the like
    (r"[A-Za-z]{1,2}\$", r"\d"),  # US$5
    (r"(?i:c\+\+|[cf]\#)", ""),
    (r"&(?:amp|lt|gt|quot|apos);|&\#\d+;", ""),
    (r"\.{3,5}|-{2,4}", ""),  # an ellipsis, a dash
    (r"-{5,}|[?!]{2,}|_+|\*+|\#+|<<|>>|''|``", ""),
    (r"\S", ""),  # any other character is a token
]


def _scanner() -> list[Callable[[str, int], re.Match[str] | None]]:
    return [re.compile(rf"(?P<token>{token})(?P<ahead>{ahead})").match for token, ahead in _RULES]


_MATCHERS = _scanner()
# Invisible characters, and all characters beyond Unicode's first plane such as emoji; the original drops them, too.
_DROPPED = re.compile(r"[\u00ad\u200b-\u200f\u2060\ufeff\ufe0e\ufe0f\U00010000-\U0010ffff]")


# A curly apostrophe becomes straight in clitics, but not in `o’clock`.
_CLITIC = re.compile("['’](?:s|m|d|re|ve|ll)|n['’]t")
# Longer ones are kept; `PUNCTUATION` has the single dash and the ellipsis.
_DASHES = re.compile(r"-{2,4}|\.{3,5}")


def tokenize(caption: str) -> list[str]:
    """The lower-case tokens of a caption.

    >>> tokenize('A man\\'s dog isn\\'t on the well-worn sofa, "Rex".')
    ['a', 'man', "'s", 'dog', 'is', "n't", 'on', 'the', 'well-worn', 'sofa', 'rex']
    >>> tokenize("Mr. Smith cannot wait (at 10:30am)!")
    ['mr.', 'smith', 'can', 'not', 'wait', '-lrb-', 'at', '10:30', 'am', '-rrb-']
    """
    words: list[str] = []
    chunks = caption.split()
    for position, chunk in enumerate(chunks):
        if chunk.isalpha() and chunk.isascii():
            word = chunk.lower()
            if word in _ASSIMILATED:
                words += _ASSIMILATED[word]
            else:
                words.append(word)
        elif chunk not in PUNCTUATION:
            next_character = chunks[position + 1][:1] if position + 1 < len(chunks) else ""
            words += _scan(chunk, next_character.isdigit())
    return words


@lru_cache(maxsize=1 << 16)
def _scan(chunk: str, number_follows: bool) -> tuple[str, ...]:
    """The tokens of a text without spaces; `number_follows`, on which `No.` depends, is about the next text."""
    text = chunk + (" 0" if number_follows else "")
    words: list[str] = []
    position = 0
    while position < len(chunk):
        token = _longest(text, position)
        words += _spell(token)
        position += len(token)
    return tuple(word for word in words if word and word not in PUNCTUATION)


def _longest(text: str, position: int) -> str:
    matches = [match for matcher in _MATCHERS if (match := matcher(text, position)) and match["token"]]
    return max(matches, key=re.Match.end)["token"]


def _spell(token: str) -> tuple[str, ...]:
    """The Treebank's spelling of a token."""
    word = _DROPPED.sub("", token.lower())
    if word in _ENTITY:
        return (_ENTITY[word],)
    if word in _ASSIMILATED:
        return _ASSIMILATED[word]
    if _CLITIC.fullmatch(word):
        return (word.replace("’", "'"),)
    if _DASHES.fullmatch(word):
        return ()
    if len(word) == 1 or word.startswith((":", ";", "=")):  # a single character, or an emoticon
        return (word.translate(_SPELLING),)
    return (word,)


SPACED_CLITIC = re.compile(r" (n't|'(?:s|m|d|ll|re|ve)?|[.,!?;:])(?= |$)")  # only sub-words give punctuation


def as_text(words: Sequence[str]) -> str:
    """Words as a sentence: the tokeniser's clitics are joined to the word before them.

    >>> as_text(["a", "man", "'s", "dog", "does", "n't", "bark"])
    "a man's dog doesn't bark"
    """
    return SPACED_CLITIC.sub(r"\1", " ".join(words))


class Vocabulary:
    """Words and their token ids; the four markers are first, then the markers of styles, if there are any.

    A captioner that was trained on data sets of different styles begins each caption with the marker of its style in
    place of `<start>`, and so can be asked for either.

    Attributes:
        words: by token id.
        ids: by word.
        styles: the names of the styles; empty for a captioner with only one.

    >>> vocabulary = Vocabulary.build([["a", "dog"], ["a", "cat"]], min_count=2)
    >>> vocabulary.words
    ('<pad>', '<start>', '<end>', '<unk>', 'a')
    >>> vocabulary.encode(["a", "dog"])
    [1, 4, 3, 2]
    """

    def __init__(self, words: Sequence[str]) -> None:
        if tuple(words[: len(MARKERS)]) != MARKERS or len(set(words)) != len(words):
            raise ValueError(f"a vocabulary starts with {MARKERS} and has every word once")
        self.words = tuple(words)
        self.ids = {word: index for index, word in enumerate(self.words)}
        matches = map(STYLE_MARKER.fullmatch, self.words[len(MARKERS) :])
        self.styles = tuple(match["style"] for match in takewhile(bool, matches) if match)

    @classmethod
    def build(
        cls,
        captions: Iterable[Sequence[str]],
        min_count: int | None = None,
        size: int | None = None,
        styles: Sequence[str] = (),
    ) -> Vocabulary:
        """The words that occur at least `min_count` times, or the `size` most frequent (markers not counted).

        Use the tokenised captions of the training split only. Ties are broken alphabetically, so the order of the
        captions does not matter. A marker that a caption contains as text is not counted.
        """
        markers = (*MARKERS, *(f"<style:{style}>" for style in styles))
        counts = Counter(word for caption in captions for word in caption if word not in markers)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        if min_count is not None:
            ranked = [word for word in ranked if counts[word] >= min_count]
        return cls((*markers, *ranked[:size]))

    @property
    def markers(self) -> int:
        """The number of token ids before the first word."""
        return len(MARKERS) + len(self.styles)

    def start(self, style: str = "") -> int:
        """The token id that captions of a style begin with; "" is the first style, or no style if there is none."""
        if not self.styles and not style:
            return START
        if style and style not in self.styles:
            known = did_you_mean(style, self.styles) if self.styles else "this model has only one style"
            raise UserError(f"unknown style {style!r}: {known}")
        return len(MARKERS) + (self.styles.index(style) if style else 0)

    def encode(self, words: Sequence[str], style: str = "") -> list[int]:
        """Token ids of a tokenised caption, between `<start>`, or the marker of a style, and `<end>`."""
        return [self.start(style), *(id for pieces in self.pieces(words) for id in pieces), END]

    def pieces(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """The token ids of each word of a caption: one, unless the tokens are sub-words (`data.subwords`)."""
        # a marker that a caption contains as text is unknown, like any word outside the vocabulary
        ids = (self.ids.get(word, UNK) for word in words)
        return [(index if index >= self.markers else UNK,) for index in ids]

    def spans(self, ids: Sequence[int]) -> list[int]:
        """The number of token ids of each word, which is 1 unless they are sub-words."""
        return [1] * len(ids)

    def has(self, word: str) -> bool:
        """Whether captions can contain the word."""
        return self.ids.get(word, 0) >= self.markers

    def as_reference(self, words: Sequence[str]) -> Sequence[str]:
        """The words of a decoded caption as metrics count them: like those of tokenised reference captions."""
        return words

    def whole_words(self) -> Iterator[tuple[int, str]]:
        """The token ids that are a word of their own, and the word."""
        return iter(enumerate(self.words))

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words of these token ids."""
        return [self.words[index] for index in ids]

    def save(self, path: str | Path) -> None:
        """Write the words as a JSON list, one word per line."""
        lines = ",\n".join(json.dumps(word, ensure_ascii=False) for word in self.words)
        write_text(path, f"[\n{lines}\n]\n")

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read what `save` wrote."""
        if not Path(path).exists():
            raise UserError(f"{path}: the model's vocabulary is missing; is this a saywhy model?")
        words = read_json(path)
        try:
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise TypeError("not a list of words")
            return cls(words)
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: not a vocabulary that saywhy wrote ({error})") from None

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)
