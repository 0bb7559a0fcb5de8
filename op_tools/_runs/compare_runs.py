"""Two runs of a program, compared call by call: where do they part?"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .._base import core
from .._base.account import ACCOUNT, accounts_of
from .._base.core import (
    Error,
    different_op_counts,
    find_recordings,
    make_recording,
    read_recording,
    read_recording_header,
)
from .._base.data_file import read_data
from .._base.rank_text import absent_ranks, ranks_text
from .._tools.record import Recording, holds_recordings
from .._torch.rank_shares import Ranks
from ..formats import format_of
from .comparison import RankComparison, RunRows, RunsComparison, Structure
from .foreign_recording import rows_of_dump
from .judged_captures import judged_by_values

# Of a header: entries that differ from run to run anyway, or are shown elsewhere.
_OF_THE_RUN = ("pid", "time", "argv", "folder", "rank", "host", "format", "start", "capture", "child", ACCOUNT)

PathOrRecording = str | os.PathLike[str] | Recording
Fusions = Sequence[tuple[Sequence[str], Sequence[str]]]
Captures = tuple[str | os.PathLike[str], str | os.PathLike[str]]


# Of pairs of calls, over all ranks, that stay in memory, at about 1.2 kB each; those of further ranks are made again when they are
# asked for.
_MOST_ROWS = 200_000


def rank_of(header: Any) -> int:
    """Of the process that a recording is of, by its header."""
    rank = header.get("rank", 0) if isinstance(header, dict) else 0
    return rank if isinstance(rank, int) else 0


def _is_recording(path: str | os.PathLike[str]) -> bool:
    """Whether there is nothing else that it may be: a missing path is named by who reads recordings."""
    file = Path(path)
    if not file.exists() or holds_recordings(file):
        return True
    try:
        format_of(file)
    except Error:
        return True
    return False


# Of this module, so that a comparison can be sent to another process together with that which makes it again.
def _recording_of(path: str) -> core.Recording:
    return read_recording(path)


def _recording_of_rows(rows: dict[str, Any]) -> core.Recording:
    return make_recording(rows)


class FoundRun(dict[int, Callable[[], core.Recording]]):
    """Functions that read the recordings of a run, by rank."""

    folder = ""
    absent: frozenset[int] = frozenset()
    """Ranks that have no file in the folder, though the world size that the others noted, or a higher rank, asks for it; of files that
    the user named none."""

    def missing(self, besides: Collection[int] = ()) -> list[str]:
        """A sentence on the absent ranks; empty where there are none, `besides` others that are named already."""
        ranks = ranks_text(self.absent.difference(besides))
        return [f"{ranks}: no file in {self.folder}"] if ranks else []


def _ranks_below(header: Any) -> int:
    """How many ranks the launch of this process had, at the least. A child of multiprocessing has a number that says nothing of others:
    a process without calls has no file."""
    facts = header if isinstance(header, dict) else {}
    size = facts.get("world_size")
    known = size if isinstance(size, int) and size > 1 else 0
    return known if facts.get("child") else max(known, rank_of(facts) + 1)


def find_run(run: PathOrRecording) -> FoundRun:
    """Functions that read the recordings of a run, by rank: of a folder, of a file, of a recording that was read, or of the dump of
    another tool. Of files of OpRecord only the headers are read before.

    Raises:
        op_tools.Error: there is none, or two files are of the same rank.
    """
    if isinstance(run, Recording):
        recorded = run.calls._core
        return FoundRun({rank_of(recorded.header): lambda: recorded})
    if not _is_recording(run):
        return FoundRun({rank: partial(_recording_of_rows, rows) for rank, rows in rows_of_dump(run).items()})
    paths: dict[int, str] = {}
    launched = 0
    for path in find_recordings(os.fspath(run)):
        header = read_recording_header(path)
        rank, launched = rank_of(header), max(launched, _ranks_below(header))
        if rank in paths:
            raise Error(f"{os.fspath(run)!s}: {paths[rank]} and {path} are both of rank {rank}; give one of the files")
        paths[rank] = path
    readers = FoundRun({rank: partial(_recording_of, path) for rank, path in paths.items()})
    readers.folder = os.fspath(run)
    if not Path(run).is_file() and list(paths.values()) != [readers.folder]:
        readers.absent = frozenset(absent_ranks(paths.keys(), launched))
    return readers


def open_run(run: PathOrRecording) -> dict[int, core.Recording]:
    """The recordings of a run by rank; raises as find_run()."""
    return {rank: read() for rank, read in find_run(run).items()}


def rank_count(run: PathOrRecording) -> int:
    """How many recordings open_run() gives, without reading those of OpRecord.

    Raises:
        op_tools.Error: there is none.
    """
    if isinstance(run, Recording) or not _is_recording(run):
        return len(find_run(run))
    return len(find_recordings(os.fspath(run)))


def has_several_ranks(run: PathOrRecording) -> bool:
    """Of a program on several ranks, of which a single one may have a file."""
    return rank_count(run) > 1 or bool(find_run(run).absent)


def _flat_header(header: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(header, dict):
        return {name: header}
    return {
        key: value
        for part, below in header.items()
        for key, value in _flat_header(below, f"{name}.{part}" if name else str(part)).items()
    }


def _header_differences(a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    of_a, of_b = _flat_header(a), _flat_header(b)
    return [
        (name, of_a.get(name), of_b.get(name))
        for name in sorted({*of_a, *of_b})
        if name.partition(".")[0] not in _OF_THE_RUN and of_a.get(name) != of_b.get(name)
    ]


_ENDS = {
    "failure": "OpRecord failed in it: {failure}",
    "disk_full": "its disk was full",
    "no_end": "it has no end: the process was killed, or still runs",
}


def _incomplete(recording: core.Recording, name: str) -> list[str]:
    header = recording.header
    lines = []
    if recording.damage:
        lines.append(f"{name}: {recording.path}: {recording.damage}")
    elif not recording.complete:
        why = _ENDS[header["ended_early"]].format(failure=header.get("failure", ""))
        lines.append(f"{name} ends before its program did: {why}: {recording.path}")
    if in_doubt := header.get("statistics_in_doubt"):
        devices = ", ".join(header["statistics_on_host"])
        lines.append(
            f"{name}: {in_doubt} values are not judged: {devices} had computed their statistics, and was found to compute "
            f"some wrong: {recording.path}"
        )
    return lines


def _core_comparison(
    a: core.Recording, b: core.Recording, noise: core.Recording | None, fusions: Fusions
) -> core.RunComparison:
    return core.compare_runs(a, b, noise=noise, fusions=[(list(ops_a), list(ops_b)) for ops_a, ops_b in fusions])


def _read_and_compare(
    a: Callable[[], core.Recording],
    b: Callable[[], core.Recording],
    noise: Callable[[], core.Recording | None],
    fusions: Fusions,
) -> core.RunComparison:
    return _core_comparison(a(), b(), noise(), fusions)


def compare_recordings(
    a: core.Recording, b: core.Recording, noise: core.Recording | None = None, fusions: Fusions = ()
) -> RankComparison:
    """A process of each run."""
    compared = _core_comparison(a, b, noise, fusions)
    rows = RunRows(compared)
    other_dtypes = compared.other_dtypes()
    structure = Structure(
        different_op_counts(a, b),
        _header_differences(a.header, b.header),
        compared.steps_only_a,
        compared.steps_only_b,
    )
    return RankComparison(
        a.path,
        b.path,
        rank_of(a.header),
        rows,
        compared.counts(),
        structure,
        _incomplete(a, "A") + _incomplete(b, "B"),
        compared.first_by_step,
        compared.births(),
        accounts_of({"A": a, "B": b}),
        compared.is_judged,
        len(other_dtypes),
        rows[other_dtypes[0]].op if other_dtypes else "",
        None if compared.first is None else rows[compared.first],
        compared,
    )


def compare_runs(
    a: PathOrRecording,
    b: PathOrRecording,
    *,
    noise: PathOrRecording | None = None,
    fusions: Fusions = (),
    captures: Captures | None = None,
) -> RunsComparison:
    """Compares two recordings of OpRecord call by call and says where they part.

    Args:
        a: the recording to compare with: a file, the folder of a run with a file for each rank, or a result of
            :func:`read_recording` gave.
        b: the other recording.
        noise: a third recording of A's program with its rounding changed (another number of threads, or
            ``jitter=``): differences are judged by how large they are there.
        fusions: pairs of lists of operators that stand for each other, by names without namespace and overload:
            ``[(["linear"], ["matmul", "add"])]``. Most are found without.
        captures: the folders of OpCapture that was on beside OpRecord in both runs: where results differ, each call is
            run again on the CPU and in float64, and the first that is wrong by itself is named.

    Returns:
        a comparison for each rank.

    Raises:
        op_tools.Error: a path holds no recording.
    """
    comparison = compare_share(Ranks(), a, b, noise, fusions, captures)
    assert comparison is not None  # of a single process
    return comparison


def _no_recording() -> None:
    return None


def compare_share(
    group: Ranks,
    a: PathOrRecording,
    b: PathOrRecording,
    noise: PathOrRecording | None = None,
    fusions: Fusions = (),
    captures: Captures | None = None,
) -> RunsComparison | None:
    """As compare_runs(), with ranks shared out among processes: the comparison of all on the first, elsewhere None."""
    of_a, of_b = find_run(a), find_run(b)
    of_noise = find_run(noise) if noise is not None else {}
    are_two_files = len(of_a) == len(of_b) == 1  # that the user named, be they of two ranks
    by_rank = dict(zip(of_a, of_b.values(), strict=True)) if are_two_files else of_b
    common = sorted(of_a.keys() & by_rank)
    ranks: list[RankComparison] = []
    kept = 0
    for rank in common[group.number :: group.count]:
        read_a, read_b, read_noise = of_a[rank], by_rank[rank], of_noise.get(rank, _no_recording)
        compared = compare_recordings(read_a(), read_b(), read_noise(), fusions)
        if captures is not None:
            compared = judged_by_values(compared, *captures)
        kept += len(compared.rows)
        if (kept > _MOST_ROWS and ranks) or group.count > 1:
            compared = compared.without_rows(partial(_read_and_compare, read_a, read_b, read_noise, fusions))
        ranks.append(compared)
    parts = group.gathered(ranks)
    if parts is None:
        return None
    ranks = sorted((rank for part in parts if part is not None for rank in part), key=lambda compared: compared.rank)
    absent = [rank for number, part in enumerate(parts) if part is None for rank in common[number :: group.count]]
    only = (("A", of_a.keys() - by_rank), ("B", by_rank.keys() - of_a))
    alone = [f"{ranks_text(ranks)}: only in {name}" for name, ranks in only if ranks]
    alone += of_a.missing(besides=by_rank) + of_b.missing(besides=of_a)
    alone += [f"{ranks_text(absent)}: {'; '.join(group.missing)}"] if absent else []
    if not common:
        raise Error(f"{a} and {b} have no rank in common: {', '.join(alone)}")
    return RunsComparison(ranks, alone)


def read_fusions(path: str | Path) -> list[tuple[list[str], list[str]]]:
    """Known fusions from a file: JSON, or YAML where it is installed. A list of {"a": [operators], "b": [operators]}.

    Raises:
        op_tools.Error: the file cannot be read, or has another form.
    """
    entries = read_data(path)
    try:
        fusions = [(list(map(str, one["a"])), list(map(str, one["b"]))) for one in entries]
    except (TypeError, KeyError, AttributeError) as error:
        raise Error(f'{path}: expected a list of {{"a": [operators], "b": [operators]}}: {error}') from None
    if not all(one and other for one, other in fusions):
        raise Error(f"{path}: a fusion has no operators on a side")
    return fusions
