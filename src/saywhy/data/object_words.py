"""Object words: which words of a caption name a visible object, and which other words support such a word.

A caption that says "person" is correct if a reference says "man"; one that says "man" is not correct if a reference
says "person". The table `object_words.txt` lists the objects with their plurals, synonyms and narrower kinds
(hyponyms); its head explains the format.

Plurals are made from each singular by the rules of English and the table's exceptions. Nothing is ever cut off the end
of a word: "horses" is a form of "horse", but "dress" is not a plural of "dres".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from saywhy.errors import UserError, did_you_mean

KINDS = ("people", "animals", "clothing", "bodyparts", "vehicles", "instruments", "scene", "other")
"""Kinds of objects, those of Flickr30k Entities."""
# The heading of phrases that name no object, although one of their words alone would.
_NOTHING = "nothing"

_LINE = re.compile(r"(?P<head>[^=>~]+)(?:=(?P<same>[^=>~]+))?(?:>(?P<narrower>[^=>~]+))?(?:~(?P<hints>[^=>~]+))?")
_NAME = re.compile(r"(?P<name>[^\s()]+)\s*(?:\((?P<forms>[^()]+)\))?\s*")
_WORDS = re.compile(r"[^\W_A-Z][^\s_A-Z]*(?:_[^\W_A-Z][^\s_A-Z]*)*")


@dataclass(frozen=True)
class Mention:
    """An object that a caption names.

    Attributes:
        position: of the word in the caption, from 0; of the last word if the name has several.
        word: as it is in the caption.
        lemma: its singular.
    """

    position: int
    word: str
    lemma: str


class ObjectWords:
    """Words for objects, and which words support which.

    Attributes:
        key: a digest of the table, for cache keys.

    >>> words = ObjectWords.read()
    >>> [mention.lemma for mention in words.mentions("two dogs share a hot dog near some geese".split())]
    ['dog', 'hot dog', 'goose']
    >>> words.is_supported("person", [["a", "cowboy", "rides"]])
    True
    >>> words.is_supported("cowboy", [["a", "person", "rides"]])
    False
    """

    def __init__(self, table: _Table, key: str) -> None:
        self.key = key
        self._table = table
        self._supporting = {name: frozenset(table.supporting(name)) for name in table.objects}
        self._longest = max(phrase.count(" ") + 1 for phrase in (*table.forms, *table.nothing))

    @classmethod
    def read(cls, path: Path | None = None) -> ObjectWords:
        """Read a table, by default the one that comes with saywhy."""
        return _default() if path is None else _parse(_read_text(path), str(path))

    @property
    def lemmas(self) -> tuple[str, ...]:
        """The names of all objects, in the order of the table."""
        return tuple(self._table.objects)

    @property
    def phrases(self) -> Mapping[str, str | None]:
        """The lemma of every form of a name; None for phrases that name no object, although a word of them would."""
        return {**self._table.forms, **dict.fromkeys(self._table.nothing)}

    def lemma(self, word: str) -> str | None:
        """The singular of an object word; `None` for any other word.

        >>> ObjectWords.read().lemma("knives")
        'knife'
        """
        return self._table.forms.get(word.lower())

    def kind(self, lemma: str) -> str:
        """Which of `KINDS` an object is.

        >>> ObjectWords.read().kind("hot dog")
        'other'
        """
        return self._table.objects[lemma].kind

    def mentions(self, words: Sequence[str]) -> tuple[Mention, ...]:
        """All object words of a tokenised caption. Of overlapping names the first counts, then the longest."""
        return tuple(
            Mention(start + length - 1, phrase, self._table.forms[phrase])
            for start, length, phrase in self._phrases(words)
            if phrase in self._table.forms
        )

    def supporting(self, lemma: str) -> frozenset[str]:
        """The objects whose mention supports this one.

        These are the object itself, its synonyms, its narrower kinds with theirs, and objects that imply one of these.
        """
        return frozenset(name for name in self._supporting[lemma] if name in self._table.objects)

    def synonyms_and_kinds(self, lemma: str) -> frozenset[str]:
        """The object itself, its synonyms, and its narrower kinds with theirs; without words that only imply it.

        >>> "skateboarder" in ObjectWords.read().synonyms_and_kinds("skateboard")
        False
        """
        return frozenset(self._table.supporting(lemma, hints=False))

    def is_supported(self, lemma: str, captions: Iterable[Sequence[str]]) -> bool:
        """Whether one of these tokenised captions mentions the object, a narrower kind, or a word that implies it.

        >>> ObjectWords.read().is_supported("grass", [["on", "a", "grassy", "hill"]])
        True
        """
        return any(not self._supporting[lemma].isdisjoint(self._lemmas_and_words(words)) for words in captions)

    def supported(self, captions: Iterable[Sequence[str]]) -> frozenset[str]:
        """All objects that one of these tokenised captions supports, as `is_supported` decides.

        >>> supported = ObjectWords.read().supported([["a", "grassy", "hill"], ["two", "poodles"]])
        >>> [name in supported for name in ("grass", "hill", "dog", "animal", "cat")]
        [True, True, True, True, False]
        """
        mentioned = {name for words in captions for name in self._lemmas_and_words(words)}
        return frozenset(
            lemma for lemma, supporting in self._supporting.items() if not supporting.isdisjoint(mentioned)
        )

    def _lemmas_and_words(self, words: Sequence[str]) -> Iterator[str]:
        """Lemmas of object words, and the words that are not part of an object's name."""
        for _, length, phrase in self._phrases(words):
            if phrase in self._table.forms:
                yield self._table.forms[phrase]
            elif length == 1 and phrase not in self._table.objects:  # the colour "orange" does not imply an orange
                yield phrase

    def _phrases(self, words: Sequence[str]) -> Iterator[tuple[int, int, str]]:
        """Divide a caption into object names, listed phrases that name no object, and single words.

        Yields the position, the number of words and the text of each.
        """
        start = 0
        while start < len(words):
            for length in range(min(self._longest, len(words) - start), 0, -1):
                phrase = " ".join(words[start : start + length]).lower()
                if length == 1 or phrase in self._table.forms or phrase in self._table.nothing:
                    yield start, length, phrase
                    start += length
                    break


class _Name(NamedTuple):
    """A name in a line of the table, with the forms in brackets behind it."""

    name: str
    forms: tuple[str, ...]


@dataclass
class _Object:
    """An object with one or several names."""

    line: int
    kind: str
    names: list[str] = field(default_factory=list)
    narrower: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)


class _TableError(Exception):
    """A mistake in a line of the table."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")


class _Table:
    """The parsed table: objects by name, names by form, and phrases that name no object."""

    def __init__(self, text: str) -> None:
        self.objects: dict[str, _Object] = {}
        self.forms: dict[str, str] = {}
        self.nothing: dict[str, int] = {}
        self._listed_forms: dict[str, tuple[str, ...]] = {}
        self._narrower: list[tuple[_Object, _Name]] = []
        self._parse(text)
        for entry, narrower in self._narrower:
            self._add_narrower(entry, narrower)
        for name in self.objects:
            self._add_forms(name)
        for phrase, line in self.nothing.items():
            if phrase in self.forms:
                other = self.objects[self.forms[phrase]].line
                raise _TableError(line, f"{phrase!r} is the name of an object in line {other}")
        self._check_cycles()

    def _parse(self, text: str) -> None:
        kind = ""
        for number, line in _lines(text):
            if line.startswith("["):
                kind = _heading(line, number)
            elif line and not line.startswith("#"):
                if not kind:
                    raise _TableError(number, f"is before the first heading, such as [{KINDS[0]}]")
                self._parse_line(line, kind, number)

    def _parse_line(self, line: str, kind: str, number: int) -> None:
        if kind == _NOTHING:
            self.nothing.update((name, number) for name, _ in _names(line, number))
            return
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise _TableError(number, f"{line!r} is not of the form: name = names > narrower names ~ words")
        entry = _Object(number, kind, hints=[name for name, _ in _names(parts["hints"], number)])
        head = _names(parts["head"], number)
        if len(head) != 1:
            raise _TableError(number, f"starts with {len(head)} names instead of one; is an = or > missing?")
        for name in (*head, *_names(parts["same"], number)):
            self._add(entry, name)
        self._narrower += [(entry, name) for name in _names(parts["narrower"], number)]

    def _add(self, entry: _Object, name: _Name) -> None:
        if name.name in self.objects:
            raise _TableError(entry.line, f"{name.name!r} is already named in line {self.objects[name.name].line}")
        self.objects[name.name] = entry
        self._listed_forms[name.name] = name.forms
        entry.names.append(name.name)

    def _add_narrower(self, entry: _Object, name: _Name) -> None:
        entry.narrower.append(name.name)
        if name.name not in self.objects:
            self._add(_Object(entry.line, entry.kind), name)
        elif name.forms:
            line = self.objects[name.name].line
            raise _TableError(entry.line, f"{name.name!r} is named in line {line}: its plural belongs there")

    def _add_forms(self, name: str) -> None:
        for form in self._forms_of(name):
            other = self.forms.setdefault(form, name)
            if other != name:
                raise _TableError(self.objects[name].line, f"{form!r} would be both {name!r} and {other!r}")

    def _forms_of(self, name: str) -> tuple[str, ...]:
        listed = self._listed_forms[name]
        if listed[:1] == ("only",):
            return listed[1:]
        if listed == ("-",):
            return (name,)
        if listed:
            return (name, *listed)
        first, _, last = name.rpartition(" ")
        if first and last in self.objects:
            return (name, *(f"{first} {form}" for form in self._forms_of(last)))
        return (name, _plural(name))

    def _check_cycles(self) -> None:
        checked: set[str] = set()
        for name in self.objects:
            self._descend(name, [], checked)

    def _descend(self, name: str, ancestors: list[str], checked: set[str]) -> None:
        head = self.objects[name].names[0]
        if head in ancestors:
            cycle = " > ".join([*ancestors[ancestors.index(head) :], head])
            raise _TableError(self.objects[head].line, f"an object cannot be a narrower kind of itself: {cycle}")
        if head not in checked:
            for narrower in self.objects[head].narrower:
                self._descend(narrower, [*ancestors, head], checked)
            checked.add(head)

    def supporting(self, name: str, hints: bool = True) -> set[str]:
        """An object's names, those of its narrower kinds, and (`hints`) the words that imply one of them."""
        entry = self.objects[name]
        own = {*entry.names, *(entry.hints if hints else ())}
        return own.union(*(self.supporting(narrower, hints) for narrower in entry.narrower))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; a line that starts with a space continues the line above it."""
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if lines and line[:1].isspace() and line.strip():
            first, beginning = lines.pop()
            lines.append((first, f"{beginning} {line.strip()}"))
        else:
            lines.append((number, line.strip()))
    yield from lines


def _heading(line: str, number: int) -> str:
    kind = line.removeprefix("[").removesuffix("]")
    if line != f"[{kind}]" or kind not in (*KINDS, _NOTHING):
        raise _TableError(number, f"unknown heading {line!r}; {did_you_mean(kind, (*KINDS, _NOTHING))}")
    return kind


def _names(text: str | None, number: int) -> list[_Name]:
    names = []
    rest = (text or "").strip()
    while rest:
        match = _NAME.match(rest)
        if match is None:
            raise _TableError(number, f"cannot read {rest!r}: plurals are in brackets behind a name")
        forms = (match["forms"] or "").split()
        for word in (match["name"], *(form for form in forms if form != "-")):
            if not _WORDS.fullmatch(word):
                raise _TableError(number, f"{word!r} is not a name: use lower-case letters, and _ between two words")
        names.append(_Name(_spaced(match["name"]), tuple(map(_spaced, forms))))
        rest = rest[match.end() :]
    return names


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _plural(name: str) -> str:
    if name.endswith(("s", "x", "z", "ch", "sh")):
        return f"{name}es"
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}s"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot read this table of object words ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text") from None


def _parse(text: str, source: str) -> ObjectWords:
    try:
        table = _Table(text)
    except _TableError as error:
        raise UserError(f"{source}, {error}") from None
    if not table.forms:
        raise UserError(f"{source}: this table has no object word; add one, below a heading such as [{KINDS[0]}]")
    return ObjectWords(table, hashlib.blake2b(text.encode(), digest_size=8).hexdigest())


@cache
def _default() -> ObjectWords:
    return _parse(files("saywhy.data").joinpath("object_words.txt").read_text(encoding="utf-8"), "object_words.txt")
