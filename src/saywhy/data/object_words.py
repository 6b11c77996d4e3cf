"""Words for things one can see: which of a caption's words name a thing, and what makes such a word true.

A caption that says "person" is right where people who saw the image said "man", and one that says "man" is not
right where they said "person". `objects.txt` tells, in lines a person can read and mend, what the things are called:
their plurals, other words for the same, and narrower kinds. Its head explains how it is written.

Plurals are made forward, from each name by the rules of English and the table's exceptions; nothing is ever taken
off the end of a word. So "horses" is a horse, and "dress" is not a "dres".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from saywhy.errors import UserError, closest

#: Those of Flickr30k Entities.
KINDS = ("people", "animals", "clothing", "bodyparts", "vehicles", "instruments", "scene", "other")
# The heading of phrases that name no thing, though a word of theirs would by itself.
_NOTHING = "nothing"

_LINE = re.compile(r"(?P<head>[^=>~]+)(?:=(?P<same>[^=>~]+))?(?:>(?P<narrower>[^=>~]+))?(?:~(?P<hints>[^=>~]+))?")
_NAME = re.compile(r"(?P<name>[^\s()]+)\s*(?:\((?P<forms>[^()]+)\))?\s*")
_WORDS = re.compile(r"[^\W_A-Z][^\s_A-Z]*(?:_[^\W_A-Z][^\s_A-Z]*)*")


@dataclass(frozen=True)
class Mention:
    """A thing that a caption names."""

    position: int
    """Of the word, or of its last word if the name has several, from 0."""
    word: str
    """As it was said."""
    lemma: str
    """In the singular."""


class ObjectWords:
    """Words for things, and what makes each of them true.

    >>> words = ObjectWords.read()
    >>> [mention.lemma for mention in words.mentions("two dogs share a hot dog near some geese".split())]
    ['dog', 'hot dog', 'goose']
    >>> words.is_attested("person", [["a", "cowboy", "rides"]])
    True
    >>> words.is_attested("cowboy", [["a", "person", "rides"]])
    False
    """

    def __init__(self, table: _Table, key: str) -> None:
        self.key = key
        """A digest of the table, for caches."""
        self._table = table
        self._attests = {name: frozenset(table.true_by(name)) for name in table.things}
        self._longest = max((phrase.count(" ") + 1 for phrase in (*table.forms, *table.nothing)), default=0)

    @classmethod
    def read(cls, path: Path | None = None) -> ObjectWords:
        """Read a table, by default the one that comes with saywhy."""
        return _shipped() if path is None else _read(_text(path), str(path))

    @property
    def lemmas(self) -> tuple[str, ...]:
        """Every name of a thing, in the order of the table."""
        return tuple(self._table.things)

    def lemma(self, word: str) -> str | None:
        """The singular of an object word; `None` if it is none.

        >>> ObjectWords.read().lemma("knives")
        'knife'
        """
        return self._table.forms.get(word)

    def kind(self, lemma: str) -> str:
        """Which of `KINDS` a thing is.

        >>> ObjectWords.read().kind("hot dog")
        'other'
        """
        return self._table.things[lemma].kind

    def mentions(self, words: Sequence[str]) -> tuple[Mention, ...]:
        """All object words of a tokenised caption. Where names overlap, the first wins, and then the longest."""
        return tuple(
            Mention(start + length - 1, phrase, self._table.forms[phrase])
            for start, length, phrase in self._phrases(words)
            if phrase in self._table.forms
        )

    def attests(self, lemma: str) -> frozenset[str]:
        """The things that make a thing true, each of which `mentions` may find.

        Itself, other words for it, its narrower kinds with theirs, and what tells of one of these.
        """
        return frozenset(name for name in self._attests[lemma] if name in self._table.things)

    def kinds_of(self, lemma: str) -> frozenset[str]:
        """Itself, other words for it, and its narrower kinds with theirs: where one of these is, there it is.

        >>> "skateboarder" in ObjectWords.read().kinds_of("skateboard")  # it tells of one, and is none
        False
        """
        return frozenset(self._table.true_by(lemma, hints=False))

    def is_attested(self, lemma: str, captions: Iterable[Sequence[str]]) -> bool:
        """Whether one of these tokenised captions mentions a thing that makes this one true, or tells of one.

        >>> ObjectWords.read().is_attested("grass", [["on", "a", "grassy", "hill"]])
        True
        """
        return any(not self._attests[lemma].isdisjoint(self._told(words)) for words in captions)

    def _told(self, words: Sequence[str]) -> Iterator[str]:
        """Lemmas of object words, and the words that are no part of a name."""
        for _, length, phrase in self._phrases(words):
            if phrase in self._table.forms:
                yield self._table.forms[phrase]
            elif length == 1 and phrase not in self._table.things:  # "orange" tells of no orange
                yield phrase

    def _phrases(self, words: Sequence[str]) -> Iterator[tuple[int, int, str]]:
        """Cut a caption into names of things, phrases that are none, and single words; where, how long and what."""
        start = 0
        while start < len(words):
            for length in range(min(self._longest, len(words) - start), 0, -1):
                phrase = " ".join(words[start : start + length])
                if length == 1 or phrase in self._table.forms or phrase in self._table.nothing:
                    yield start, length, phrase
                    start += length
                    break


class _Name(NamedTuple):
    """A name as a line writes it, with what stands in the brackets behind it."""

    name: str
    forms: tuple[str, ...]


@dataclass
class _Thing:
    """What one or several names stand for."""

    line: int
    kind: str
    names: list[str] = field(default_factory=list)
    narrower: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)


class _Mistake(Exception):
    """Something wrong with the table: in which line, and what."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")


class _Table:
    """The table as read: things by name, names by form, and phrases that name nothing."""

    def __init__(self, text: str) -> None:
        self.things: dict[str, _Thing] = {}
        self.forms: dict[str, str] = {}
        self.nothing: dict[str, int] = {}
        self._written: dict[str, tuple[str, ...]] = {}
        self._narrower: list[tuple[_Thing, _Name]] = []
        self._read(text)
        for thing, narrower in self._narrower:
            self._add_narrower(thing, narrower)
        for name in self.things:
            self._add_forms(name)
        for phrase, line in self.nothing.items():
            if phrase in self.forms:
                raise _Mistake(line, f"{phrase!r} is named as a thing in line {self.things[self.forms[phrase]].line}")
        self._refuse_cycles()

    def _read(self, text: str) -> None:
        kind = ""
        for number, told in _lines(text):
            if told.startswith("["):
                kind = _heading(told, number)
            elif told and not told.startswith("#"):
                if not kind:
                    raise _Mistake(number, f"stands before the first heading, such as [{KINDS[0]}]")
                self._read_line(told, kind, number)

    def _read_line(self, told: str, kind: str, number: int) -> None:
        if kind == _NOTHING:
            self.nothing.update((name, number) for name, _ in _names(told, number))
            return
        parts = _LINE.fullmatch(told)
        if parts is None:
            raise _Mistake(number, f"{told!r} is not of the form: name = names > narrower names ~ words")
        thing = _Thing(number, kind, hints=[name for name, _ in _names(parts["hints"], number)])
        head = _names(parts["head"], number)
        if len(head) != 1:
            raise _Mistake(number, f"starts with {len(head)} names where one is due; is an = or > missing?")
        for name in (*head, *_names(parts["same"], number)):
            self._add(thing, name)
        self._narrower += [(thing, name) for name in _names(parts["narrower"], number)]

    def _add(self, thing: _Thing, name: _Name) -> None:
        if name.name in self.things:
            raise _Mistake(thing.line, f"{name.name!r} is named in line {self.things[name.name].line} already")
        self.things[name.name] = thing
        self._written[name.name] = name.forms
        thing.names.append(name.name)

    def _add_narrower(self, thing: _Thing, name: _Name) -> None:
        thing.narrower.append(name.name)
        if name.name not in self.things:
            self._add(_Thing(thing.line, thing.kind), name)
        elif name.forms:
            line = self.things[name.name].line
            raise _Mistake(thing.line, f"{name.name!r} is named in line {line}: its plural belongs there")

    def _add_forms(self, name: str) -> None:
        for form in self._forms_of(name):
            other = self.forms.setdefault(form, name)
            if other != name:
                raise _Mistake(self.things[name].line, f"{form!r} would be both {name!r} and {other!r}")

    def _forms_of(self, name: str) -> tuple[str, ...]:
        written = self._written[name]
        if written[:1] == ("only",):
            return written[1:]
        if written == ("-",):
            return (name,)
        if written:
            return (name, *written)
        first, _, last = name.rpartition(" ")
        if first and last in self.things:
            return (name, *(f"{first} {form}" for form in self._forms_of(last)))
        return (name, _plural(name))

    def _refuse_cycles(self) -> None:
        done: set[str] = set()
        for name in self.things:
            self._descend(name, [], done)

    def _descend(self, name: str, above: list[str], done: set[str]) -> None:
        head = self.things[name].names[0]
        if head in above:
            circle = " > ".join([*above[above.index(head) :], head])
            raise _Mistake(self.things[head].line, f"a thing is no narrower kind of itself: {circle}")
        if head not in done:
            for narrower in self.things[head].narrower:
                self._descend(narrower, [*above, head], done)
            done.add(head)

    def true_by(self, name: str, hints: bool = True) -> set[str]:
        """Names of all things that make a thing true, and the words that tell of one of them."""
        thing = self.things[name]
        own = {*thing.names, *(thing.hints if hints else ())}
        return own.union(*(self.true_by(narrower, hints) for narrower in thing.narrower))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; one that starts with a space goes on with the line above it."""
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if lines and line[:1].isspace() and line.strip():
            first, told = lines.pop()
            lines.append((first, f"{told} {line.strip()}"))
        else:
            lines.append((number, line.strip()))
    yield from lines


def _heading(told: str, number: int) -> str:
    kind = told.removeprefix("[").removesuffix("]")
    if told != f"[{kind}]" or kind not in (*KINDS, _NOTHING):
        raise _Mistake(number, f"unknown heading {told!r}; {closest(kind, (*KINDS, _NOTHING))}")
    return kind


def _names(told: str | None, number: int) -> list[_Name]:
    names = []
    rest = (told or "").strip()
    while rest:
        match = _NAME.match(rest)
        if match is None:
            raise _Mistake(number, f"cannot read {rest!r}: plurals stand in brackets behind a name")
        forms = (match["forms"] or "").split()
        for word in (match["name"], *(form for form in forms if form != "-")):
            if not _WORDS.fullmatch(word):
                raise _Mistake(number, f"{word!r} is no name: small letters, and _ between two words")
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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot read this table of object words ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text") from None


def _read(text: str, source: str) -> ObjectWords:
    try:
        table = _Table(text)
    except _Mistake as mistake:
        raise UserError(f"{source}, {mistake}") from None
    return ObjectWords(table, hashlib.blake2b(text.encode(), digest_size=8).hexdigest())


@cache
def _shipped() -> ObjectWords:
    return _read(files("saywhy.data").joinpath("object_words.txt").read_text(encoding="utf-8"), "object_words.txt")
