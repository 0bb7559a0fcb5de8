"""A file system in user space over a folder, whose writes are as slow as a file beside it says: a network mount in trouble.

    slow_mount.py FOLDER MOUNT TROUBLE

TROUBLE is a file with "" (writes pass), "slow SECONDS" (each write takes so long), "hang" (a write ends when the file says
another thing) or "gone" (writes, new files and new folders fail). It is read at each of them.
"""

import errno
import os
import sys
import time
from pathlib import Path

import mfusepy


class SlowFolder(mfusepy.Operations):
    def __init__(self, folder, trouble):
        self.folder, self.trouble = folder, Path(trouble)

    def at(self, path):
        return self.folder + path

    def wait(self):
        while (trouble := self.trouble.read_text()) == "hang":
            time.sleep(0.02)
        if trouble.startswith("slow"):
            time.sleep(float(trouble.split()[1]))
        if trouble == "gone":
            raise mfusepy.FuseOSError(errno.EIO)

    def getattr(self, path, fh=None):
        try:
            status = os.lstat(self.at(path))
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno) from None
        return {
            name: getattr(status, name) for name in ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_mtime")
        }

    def readdir(self, path, fh):
        return [".", "..", *(entry.name for entry in Path(self.at(path)).iterdir())]

    def mkdir(self, path, mode):
        self.wait()
        Path(self.at(path)).mkdir(mode)
        return 0

    def create(self, path, mode, fi=None):
        self.wait()
        return os.open(self.at(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path, flags):
        return os.open(self.at(path), flags & ~os.O_APPEND)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        self.wait()
        return os.pwrite(fh, data, offset)

    def truncate(self, path, length, fh=None):
        os.truncate(self.at(path), length)
        return 0

    def rename(self, old, new):
        Path(self.at(old)).rename(self.at(new))
        return 0

    def unlink(self, path):
        Path(self.at(path)).unlink()
        return 0

    def rmdir(self, path):
        Path(self.at(path)).rmdir()
        return 0

    def release(self, path, fh):
        os.close(fh)
        return 0


if __name__ == "__main__":
    folder, mount, trouble = sys.argv[1:]
    mfusepy.FUSE(SlowFolder(folder, trouble), mount, foreground=True)
