"""Questions that users have, each with the commands that answer it and the page that says more: op-tools help QUESTION."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """A question, as README.md has it."""

    text: str
    words: str
    """Further words by which it is known."""
    commands: tuple[str, ...]
    page: str
    """In docs/."""


QUESTIONS = (
    Question(
        "which call is wrong",
        "operator kernel result accuracy precision error reference cpu float64 nan inf infinity overflow incorrect",
        ("op-tools run --autocompare train.py", "op-tools run --overflow train.py"),
        "autocompare.md",
    ),
    Question(
        "is my compiled program right",
        "torch.compile graph inductor dynamo backend",
        ("op-tools run --autocompare train.py", "op-tools run --autocompare --compiled nodes train.py"),
        "compiled.md",
    ),
    Question(
        "which result has other bits the second time, beside other rows, in another batch, at another position of it",
        "deterministic determinism reproducible batch invariant race random",
        ("op-tools run --invariance train.py", "op-tools repro FOLDER_OF_A_CALL"),
        "invariance.md",
    ),
    Question(
        "show it to the vendor",
        "save capture dump replay inputs outputs bug report reproduce script small example issue",
        (
            "op-tools run --capture train.py",
            "run_op_from_data op_capture_result --acc_check",
            "op-tools repro FOLDER_OF_A_CALL --shrink",
        ),
        "repro.md",
    ),
    Question(
        "training and inference give other log-probabilities",
        "drift rollout sampler prefill decode kv cache sequence token engine serve logprob",
        (
            "op-tools run --record --row-hashes --output-dir train train.py",
            "op-tools run --record --row-hashes --output-dir serve serve.py",
            "op-tools compare train serve --as-sequence",
        ),
        "sequences.md",
    ),
    Question(
        "where do two runs part",
        "compare diverge difference loss devices versions first recording module iteration",
        ("op-tools run --record a train.py", "op-tools run --record b train.py", "op-tools compare a b"),
        "compare_runs.md",
    ),
    Question(
        "it is wrong, slow or stuck, and I do not know where to begin",
        "help night anything everything diagnose cause begin start broken trouble",
        ("op-tools diagnose -- train.py",),
        "diagnose.md",
    ),
    Question(
        "which operator makes the loss wrong",
        "bisect culprit converge training diverges",
        ("op-tools bisect -- train.py",),
        "bisect.md",
    ),
    Question(
        "how to go on without it",
        "fallback cpu dtype missing unsupported operator not implemented workaround",
        ("op-tools run --fallback --ops NAMES train.py",),
        "fallback.md",
    ),
    Question(
        "which operator is slow",
        "time profile performance speed fast trace latency duration rank straggler",
        ("op-tools run --time train.py", "op-tools report . -o report.html"),
        "timing.md",
    ),
    Question(
        "which call died or hangs",
        "crash segfault killed hang deadlock stuck signal black box",
        ("op-tools run --blackbox train.py", "op-tools blackbox op_blackbox_result"),
        "blackbox.md",
    ),
    Question(
        "who holds the memory",
        "leak out of memory oom growth peak allocate",
        ("op-tools run --memory train.py",),
        "memory.md",
    ),
    Question(
        "which operators run, with which shapes",
        "observe list statistics dynamic shape dtype",
        ("op-tools run --observe train.py", "op-tools ops"),
        "observe.md",
    ),
    Question(
        "is the device right",
        "conformance suite test backend all operators verify golden",
        ("op-tools conformance run --device cpu -o result",),
        "conformance.md",
    ),
    Question(
        "before the first run",
        "support analyse analyze port migrate cuda script source will work",
        ("op-tools support --device cpu -o table.json", "op-tools analyse -i train -o out --support table.json"),
        "analyse.md",
    ),
    Question(
        "all of it, to look at",
        "report page html browser pictures serve show results",
        ("op-tools report . -o report.html", "op-tools serve ."),
        "report.md",
    ),
    Question(
        "files of other tools",
        "import export troubleshooter msprobe ditorch convert h5 dump",
        ("op-tools import DUMP calls", "op-tools export op_capture_result out --format msprobe"),
        "formats.md",
    ),
    Question(
        "why is my result empty",
        "nothing empty no calls filter doctor environment variables",
        ("op-tools doctor",),
        "interface.md",
    ),
)

_OWN = 1.5  # the weight of a word of the question, against a further word
_COMMON = frozenset(
    "a an and are at by do does for from go how i in is it me my of on or the there to what where which who why with".split()
)


def _stems(text: str) -> set[str]:
    """Words without their usual ends: "hangs" and "hang" are the same."""
    words = re.findall(r"[a-z0-9.]+", text.lower())
    return {re.sub(r"(?<=\w{3})(ing|ed|es|s|e)$", "", word) for word in words if word not in _COMMON}


def answers(question: str, most: int = 3) -> list[Question]:
    """The questions that are most like this question; none where no word of it is known."""
    wanted = _stems(question)
    words = [(_stems(known.text), _stems(known.words)) for known in QUESTIONS]
    scores = []
    for number, (own, further) in enumerate(words):
        score = 0.0
        for word in wanted & (own | further):
            # A word of a single question says more than a word of many; one of the question itself more than a further one.
            of = sum(word in others[0] or word in others[1] for others in words)
            score += (_OWN if word in own else 1.0) / of
        if own and own <= wanted:
            score += len(own)  # word for word
        if score:
            scores.append((-score, number))
    best = sorted(scores)[:most]
    return [QUESTIONS[number] for score, number in best if 2 * score <= best[0][0]]
