"""Work that no tool of the test's thread follows: in a thread that was there before the tools, in a thread that such a thread
started, in a process without tools."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

EARLIER = ThreadPoolExecutor(1)  # its thread is there from the import on, and tools do not follow it
EARLIER.submit(int).result()


def joined(run):
    """In a thread of its own, to its end."""
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def in_unfollowed_thread(run):
    """In a thread that no tool follows: another thread started it."""
    EARLIER.submit(joined, run).result()


def in_fork(run):
    """In a forked process, which has no tool."""
    if (child := os.fork()) == 0:
        run()
        os._exit(0)
    os.waitpid(child, 0)
