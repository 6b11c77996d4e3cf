"""The output of a run over many images: finished parts, what they were made with, and one file of them at the end.

    captions.parquet                    all rows; appears when the last part is done
    captions.parquet.parts/_run.json    the model, the options and the inputs of the run
                           _lock        held while a process works
                           part-….parquet

If the output is a folder, the parts are in it and stay there. Both folders are data sets that Parquet readers can read
as they are. A run with another model, other options or other inputs than those in `_run.json` is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from saywhy.bulk.parts import Part
from saywhy.bulk.row_files import Column, Row, row_format
from saywhy.errors import UserError
from saywhy.files import file_lock, read_json, write_text

RUN, LOCK = "_run.json", "_lock"
FORMAT = 1
Settings = Mapping[str, Any]
"""What rows depend on, by aspect: `{"model": …, "options": …, "input": …}`; values are JSON."""


class Output:
    """The parts of one run, and the file that they become.

    Args:
        path: a file ending in .jsonl or .parquet, or a folder without a suffix, in which the parts stay as Parquet.
        columns: of the rows.
    """

    def __init__(self, path: str | Path, columns: Sequence[Column]) -> None:
        self.path, self.columns = Path(path), columns
        self.is_folder = not self.path.suffix
        self.suffix = ".parquet" if self.is_folder else self.path.suffix
        self.folder = self.path if self.is_folder else self.path.with_name(f"{self.path.name}.parts")
        row_format(self.suffix)  # a UserError if the suffix is unknown or a library is missing

    @contextmanager
    def opened(self, settings: Settings) -> Iterator[bool]:
        """Lock the output and begin or continue the run with these settings; yields whether it is finished already."""
        self._check()
        busy = f"{self.path}: another process is writing it; wait for it, or choose another --out"
        with file_lock(self.folder / LOCK, busy):
            if self._run_file.exists():
                self._require_same(settings)
            else:
                self._write_run(settings, finished=False)
            for unfinished in self.folder.glob(".*.part"):  # of a process that was killed
                unfinished.unlink(missing_ok=True)
            yield self._is_finished()

    def done(self) -> list[Part]:
        """The parts that are written."""
        names = (path.name.removesuffix(self.suffix) for path in self.folder.glob(f"part-*{self.suffix}"))
        return sorted(part for name in names if (part := Part.parse(name)))

    def write(self, part: Part, rows: Sequence[Row]) -> None:
        """Write the rows of a part as one complete file."""
        assert len(rows) == len(part)
        self._require_folder()
        row_format(self.suffix).write(self.file(part), rows, self.columns)

    def finish(self, parts: Sequence[Part], settings: Settings) -> None:
        """Make one file of all parts, and remove them; a folder keeps them."""
        self._require_folder()
        files = [self.file(part) for part in sorted(parts)]
        if not self.is_folder:
            row_format(self.suffix).join(files, self.path, self.columns)
        self._write_run(settings, finished=True)
        for file in () if self.is_folder else files:
            file.unlink()

    def _check(self) -> None:
        """Raise a `UserError` if something else is at the path."""
        if self.path.exists() and self.path.is_dir() != self.is_folder:
            raise UserError(f"{self.path}: is {'a file' if self.is_folder else 'a folder'}; choose another --out")
        strange = any(self.folder.iterdir()) if self.is_folder and self.folder.exists() else self.path.exists()
        if strange and not self._run_file.exists() and not (self.folder / LOCK).exists():
            raise UserError(f"{self.path}: exists already, and no run that could be continued made it; choose another")

    def _require_same(self, settings: Settings) -> None:
        known = self._read_run()
        for aspect, value in json.loads(json.dumps(settings)).items():
            if known.get(aspect) != value:
                raise UserError(
                    f"{self.path}: begun with {_difference(aspect, known.get(aspect), value)}; choose another --out, "
                    f"or delete {self.folder if self.is_folder else f'{self.path} and {self.folder}'} to start again"
                )

    def _require_folder(self) -> None:
        if not self._run_file.exists():
            raise UserError(
                f"{self.folder}: the output folder has vanished while it was written; bring it back, or start again"
            )

    def _is_finished(self) -> bool:
        return bool(self._read_run().get("finished")) and (self.is_folder or self.path.exists())

    @property
    def _run_file(self) -> Path:
        return self.folder / RUN

    def _read_run(self) -> dict[str, Any]:
        known = read_json(self._run_file, "delete the folder to start again")
        if not isinstance(known, dict) or known.get("format") != FORMAT:
            raise UserError(f"{self._run_file}: of another version of saywhy; choose another --out")
        return known

    def _write_run(self, settings: Settings, finished: bool) -> None:
        record = {"format": FORMAT, "finished": finished, **settings}
        write_text(self._run_file, json.dumps(record, indent=2, ensure_ascii=False) + "\n")

    def file(self, part: Part) -> Path:
        """The file of a part."""
        return self.folder / f"{part.name}{self.suffix}"


def _difference(aspect: str, old: Any, new: Any) -> str:
    """What differs between two settings, in words.

    >>> _difference("options", {"beam": 3, "risk": True}, {"beam": 5, "risk": True})
    'beam = 3, not 5'
    """
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{aspect} = {old}, not {new}"
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    name = names[0]
    place = "" if aspect == "options" else f"another {aspect}: "
    return f"{place}{name} = {old.get(name)}, not {new.get(name)}"
