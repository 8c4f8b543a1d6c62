"""The tasks of a job: tensors, or panels of a large tensor, that a worker writes, and their byte ranges."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from attrs import frozen

from squish_core.errors import UsageError
from squish_core.file import File

from ..activations import ActivationStatistics
from ..image import OutputImage, PartExtent
from ..plan import ConversionPlan
from ..step import Step
from ..virtual import PanelTable, panels_of

UNIT = 4 << 20
"""Bytes of a unit of copied parts, which is never split."""


@frozen
class Piece:
    """Units `start` to `stop` of the tensor of a step: panels, or `UNIT` bytes of each part that is copied.

    `stop` is None for a whole tensor. All parts of a unit are produced together.
    """

    step: int
    start: int = 0
    stop: int | None = None


@frozen
class Task:
    """Pieces that one worker writes. `files`: output files that it writes whole, if the target is at a URL."""

    number: int
    pieces: tuple[Piece, ...]
    files: tuple[int, ...] = ()


@frozen
class PieceRange:
    """Bytes `start` to `stop` of a part, at `offset` of an output file."""

    role: str
    start: int
    stop: int
    file: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.stop - self.start


class JobPartition:
    """The partition of a plan's output into tasks, and the byte ranges of their pieces."""

    def __init__(
        self, plan: ConversionPlan, image: OutputImage, file: File, statistics: ActivationStatistics | None
    ) -> None:
        self._plan, self._image, self._file, self._statistics = plan, image, file, statistics
        self._table: tuple[int, PanelTable] | None = None
        self._locations: dict[tuple[str, str], tuple[int, int]] = {}
        for number, output in enumerate(image.files):
            for extent, offset in zip(output.extents, output.starts):
                if isinstance(extent, PartExtent):
                    self._locations[extent.tensor, extent.role] = number, offset

    def tasks(self, task_bytes: int) -> tuple[Task, ...]:
        """The tasks in the order of their output, each of about `task_bytes`: whole tensors, or panels of one."""
        groups, group, size = list[list[Piece]](), list[Piece](), 0
        for number in self._in_order():
            for piece, nbytes in self._cut(number, task_bytes):
                if group and size + nbytes > task_bytes:
                    groups.append(group)
                    group, size = [], 0
                group.append(piece)
                size += nbytes
        groups += [group] if group else []
        return tuple(Task(number, tuple(pieces)) for number, pieces in enumerate(groups))

    def file_tasks(self, task_bytes: int) -> tuple[Task, ...]:
        """Tasks of about `task_bytes` that write whole files; files that share a tensor are in one task."""
        tasks, batch, size = list[Task](), list[tuple[list[int], list[int]]](), 0
        groups, without_files = self._file_groups()
        for group in groups:
            nbytes = sum(self._image.files[file].size for file in group[0])
            if batch and size + nbytes > task_bytes:
                tasks.append(_file_task(len(tasks), batch))
                batch, size = [], 0
            batch.append(group)
            size += nbytes
        return (*tasks, _file_task(len(tasks), [*batch, ([], without_files)]))

    def _file_groups(self) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
        """Groups of files and the steps of their parts, and the steps without files.

        Files that share a step are in one group.
        """
        groups: dict[int, tuple[list[int], list[int]]] = {}
        without_files = []
        for number, step in enumerate(self._plan.steps):
            locations = (self._locations.get((step.spec.name, role)) for role in step.spec.encodings[0].parts)
            files = dict.fromkeys(location[0] for location in locations if location)
            shared = list({id(groups[file]): groups[file] for file in files if file in groups}.values())
            if not files:
                without_files.append(number)
            elif len(shared) == 1 and files.keys() <= set(shared[0][0]):
                shared[0][1].append(number)
            else:
                new = [file for file in files if file not in groups]
                merged_files, merged_steps = ([*chain(*lists)] for lists in zip(*shared)) if shared else ([], [])
                group = ([*new, *merged_files], [*merged_steps, number])
                groups.update(dict.fromkeys(group[0], group))
        return list({id(group): group for group in groups.values()}.values()), without_files

    def ranges(self, piece: Piece) -> Iterator[PieceRange]:
        """Yield the bytes of a piece, part by part."""
        step = self._plan.steps[piece.step]
        for role, part in step.spec.encodings[0].parts.items():
            start, stop = 0, part.nbytes
            if piece.stop is not None and step.is_computed:
                starts = self.table(piece.step).starts[role]
                start, stop = starts[piece.start], starts[piece.stop]
            elif piece.stop is not None:
                start, stop = min(piece.start * UNIT, stop), min(piece.stop * UNIT, stop)
            if start < stop:
                file, offset = self._locations[step.spec.name, role]
                yield PieceRange(role, start, stop, file, offset + start)

    def table(self, number: int) -> PanelTable:
        """Return the panels of a tensor that is encoded or repacked."""
        latest = self._table  # of the previous task; other threads may replace it
        if latest is None or latest[0] != number:
            step = self._plan.steps[number]
            latest = number, PanelTable(step, panels_of(self._file, step, self._statistics), self._file)
            self._table = latest
        return latest[1]

    def _in_order(self) -> Iterator[int]:
        """Numbers of the steps in the order of their parts in the files; empty tensors last."""
        numbers = {step.spec.name: number for number, step in enumerate(self._plan.steps)}
        without_bytes = (number for number, step in enumerate(self._plan.steps) if not step.size)
        yield from dict.fromkeys([*(numbers[tensor] for tensor, _ in self._locations), *without_bytes])

    def _cut(self, number: int, task_bytes: int) -> Iterator[tuple[Piece, int]]:
        """Yield the pieces of one tensor, with their sizes."""
        step = self._plan.steps[number]
        units = self._units(number) if step.size > task_bytes else 1
        count = min(-(-step.size // max(task_bytes, 1)), units)
        if count < 2:
            yield Piece(number), step.size
            return
        bounds = [units * index // count for index in range(count + 1)]
        for start, stop in zip(bounds, bounds[1:]):
            yield Piece(number, start, stop), step.size * (stop - start) // units

    def _units(self, number: int) -> int:
        """Number of pieces into which a tensor can be split."""
        step = self._plan.steps[number]
        if any(part.filters for part in step.origin.parts.values()):
            return 1  # decompressed as a whole
        if not step.is_computed:
            return max(-(-part.nbytes // UNIT) for part in step.spec.encodings[0].parts.values())
        try:
            return len(self.table(number).regions)
        except UsageError:  # ranges depend on the data
            return 1


def steps_of(plan: ConversionPlan, task: Task) -> list[Step]:
    """Return the steps of a task."""
    return [plan.steps[piece.step] for piece in task.pieces]


def _file_task(number: int, groups: list[tuple[list[int], list[int]]]) -> Task:
    files, steps = (list(chain(*lists)) for lists in zip(*groups))
    return Task(number, tuple(map(Piece, steps)), tuple(files))
