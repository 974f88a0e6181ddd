"""The file system that the checkpoints go to: a small ext4 of its own where that may be made, so that it can be filled up."""
import os
import shutil
import subprocess

SIZE = "2G"  # of a sparse file: only what is written takes room


class Store:
    def __init__(self, out):
        self.image, self.path = out / "store.img", out / "store"
        self.filler = self.path / "filler"
        self.path.mkdir()
        self.why_plain = self.make()
        self.small = not self.why_plain

    def make(self):
        """Why there is no file system of its own; empty if there is one."""
        if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.ext4", "mount", "umount"))):
            return "only root, with mkfs.ext4, may make a file system"
        subprocess.run(["truncate", "-s", SIZE, self.image], check=True)
        for argv in (["mkfs.ext4", "-q", "-m", "0", self.image], ["mount", "-o", "loop", self.image, self.path]):
            done = subprocess.run(list(map(str, argv)), capture_output=True, text=True)
            if done.returncode != 0:
                self.image.unlink()
                return done.stderr.strip()
        return ""

    def fill(self):
        """Until not even a small file fits."""
        with open(self.filler, "wb") as file:
            for piece in (1 << 26, 1 << 20, 1 << 12):
                while True:
                    try:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), piece)
                    except OSError:
                        break

    def empty(self):
        self.filler.unlink(missing_ok=True)

    def close(self):
        if self.small:
            subprocess.run(["umount", str(self.path)], check=True, capture_output=True)
