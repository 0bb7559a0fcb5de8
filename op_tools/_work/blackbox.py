"""op-tools blackbox: the files of OpBlackBox."""

from __future__ import annotations

import argparse
import sys
import time

from .._base.core import Error
from .._base.verdict import status_of
from .._commands.command_line import visible
from .._tools.black_box_file import ask_for_stacks, read_black_box, save_kept_calls
from .._tools.black_boxes import find_black_boxes, read_black_boxes, show_black_boxes, verdict_of_boxes


def _save(options: argparse.Namespace) -> int:
    files = find_black_boxes(options.path)
    if len(files) > 1:
        raise Error(f"{options.path}: has {len(files)} files of OpBlackBox; name the file whose calls are to be saved")
    for folder in save_kept_calls(files[0], options.save):
        sys.stdout.write(visible(f"{folder}\n"))
    return 0


def _ask(options: argparse.Namespace) -> int:
    asked = [path for path in find_black_boxes(options.path) if read_black_box(path).alive]
    if not asked:
        raise Error(f"{options.path}: none of its processes lives on this machine")
    for path in asked:
        sys.stdout.write(visible(f"{path}\n{ask_for_stacks(path)}\n"))
    return 0


def run_command(options: argparse.Namespace) -> int:
    if options.save:
        return _save(options)
    if options.stacks:
        return _ask(options)
    while True:
        boxes, problems = read_black_boxes(options.path)
        text = "\n".join(box.to_json() for box in boxes) if options.json else show_black_boxes(boxes, options.last)
        sys.stdout.write(visible(text) + "\n")
        sys.stdout.flush()
        for problem in problems:
            sys.stderr.write(visible(f"op-tools: {problem}\n"))
        if not options.follow or not any(box.alive for box in boxes):
            break
        time.sleep(1)
        sys.stdout.write("\n")
    return status_of(verdict_of_boxes(boxes, problems), allow_unseen=options.allow_unseen)
