"""The independent reader against golden files, against checkpoints of the day (CKPT_CHECKPOINT_DIR, several
joined by ':'), and against one damaged byte in every file of them."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from xxh3 import xxh3_64, xxh3_128  # noqa: E402

GOLDEN = os.path.join(HERE, "golden", "v1")
GOLDEN_CHUNKS = os.path.join(HERE, "golden", "v1-chunks")
CHECKPOINT = "s-7.e2.a3"


def read(directory):
    return subprocess.run([sys.executable, "-B", os.path.join(HERE, "read_v1.py"), directory],
                          capture_output=True, text=True, timeout=300)


def sample(size):
    return bytes((i * i * 31 + i * 7 + (i >> 3)) & 255 for i in range(size))


class TestXxh3(unittest.TestCase):
    # From the reference implementation, over sample(size): every class of length, with seeds.
    KNOWN = """0 0 99aa06d3014798d86001c324468d497f
0 11400714819323198485 d142977a2cca554b4ca5176998171787
1 0 a6cd5e9392000f6ac44bdff4074eecdb
1 11400714819323198485 e366b8c99a31df50062b185e4e01441a
3 0 2012adb9c9d860b71729c78f56ec7369
3 11400714819323198485 558e742746b6e65556c3601e4220d2f8
4 0 845026b94ecb793b2494ffbfb3959765
4 11400714819323198485 f06c0012c774c39a4ab1d896698ae978
8 0 4132fb07c0432330ce0ff5563c3393fc
8 11400714819323198485 cf9d589ce7eac8b30cb6fe7cb7cfd9f4
9 0 c74d9d66508f0ed15bf53993618ef3c3
9 11400714819323198485 a6602eae09dfd5f36cedbb9dd43543fa
16 0 c68069488459e28464aaf0f56394a48a
16 11400714819323198485 791711fff1a8001d5c0c1b97631f1335
17 0 9c94ffd5064490e4cf133458d4cd050e
17 11400714819323198485 c2c70ca5d84003ca6c06be98fb459232
28 0 480af2021ca9d1f5f910645f54859897
28 11400714819323198485 4edf713de2720155bffa8c026863d368
64 0 415039b8b1ed4939830cf34b5aaf1ea0
64 11400714819323198485 cee11d68100695a37ef34d6c10cf4e24
96 0 efd8446dd1d1c11cbf71aeaeb3e89f44
96 11400714819323198485 7e136943b237ca040bfa5f2103f689d2
128 0 e36bd4b67b5b67ffe38f3defaeeaf31e
128 11400714819323198485 dfbcce223b2de965a7da5e9945fbf20f
129 0 1055c34cfecb5110d54a4c7d61efd85d
129 11400714819323198485 bfff67aaa802c312526af9659799c27a
240 0 592fbb4cbcd96dc57f1b44d189e4da64
240 11400714819323198485 619f294e0d3a83388bd547f48166dc88
241 0 d26f5a1db0445e864ec0cf1426e2ccd9
241 11400714819323198485 b9446e72f1b9acc6871dd3c24879c2ed
1024 0 9ea5a013d9242cb4c849db82ed726d1d
1024 11400714819323198485 46dab056d8f0c7c81bbf9f5d952663a2
1025 0 d29ad0c22de701e66a55ef7828c55abd
1025 11400714819323198485 ee90d14409fc79a5865741c51014b977
5000 0 474d682f9c33cd89ed638a02142d3984
5000 11400714819323198485 f3dd0eb6b1e4e29e6cefbc13ee9678d6"""

    def test_known_vectors(self):
        for line in self.KNOWN.split("\n"):
            size, seed, digest = line.split()
            self.assertEqual(xxh3_128(sample(int(size)), int(seed)).hex(), digest, line)

    def test_64_of_a_chunk_seed(self):
        self.assertEqual(xxh3_64(sample(28)), 0xec937d34e54770f1)
        self.assertEqual(xxh3_64(sample(128), 1), 0x0cb246840e0a49c2)


class TestGolden(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.mkdtemp(prefix="ckpt-reader-")
        self.addCleanup(shutil.rmtree, self.scratch)

    def copy(self):
        target = os.path.join(self.scratch, "job")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(GOLDEN, target, ignore=shutil.ignore_patterns(".gitattributes"))
        return target

    def test_reads_everything(self):
        done = read(GOLDEN)
        self.assertEqual(done.returncode, 0, done.stderr)
        job = json.loads(done.stdout)
        self.assertEqual(job["epochs"], {"2": [], "3": [CHECKPOINT]})
        found, = job["checkpoints"]
        names = {tensor["name"] for tensor in found["tensors"]}
        for name in ("a.b", "a/b", "0", "é", "", "k" * 4096, "../x", "__metadata__", "x#1", "scalar"):
            self.assertIn(name, names)
        dtypes = {tensor["dtype"] for tensor in found["tensors"]}
        self.assertEqual(len(dtypes), 18)
        slices = [t for shard in found["shards"].values() for t in shard if t["name"] == "replicated"]
        self.assertEqual(len(slices), 4)
        self.assertNotIn("tied", [t["name"] for shard in found["shards"].values() for t in shard])

    def test_a_copy_under_another_name_is_whole(self):
        target = os.path.join(self.scratch, "elsewhere")
        shutil.copytree(os.path.join(GOLDEN, CHECKPOINT), target)
        self.assertEqual(read(target).returncode, 0)

    def flip(self, path, at):
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))

    def test_one_flipped_byte_in_each_file_is_found(self):
        files = [os.path.relpath(os.path.join(root, name), GOLDEN)
                 for root, _, names in os.walk(GOLDEN) for name in names]
        self.assertGreater(len(files), 10)
        for name in files:
            size = os.path.getsize(os.path.join(GOLDEN, name))
            for at in (0, size // 2, size - 1):
                target = self.copy()
                self.flip(os.path.join(target, name), at)
                done = read(target)
                self.assertEqual(done.returncode, 4, f"{name} byte {at}: {done.stdout}")
                self.assertNotIn("Traceback", done.stderr)
                self.assertEqual(done.stdout, "")

    def test_damage_in_a_shard_names_chunk_and_tensor(self):
        shards = json.loads(read(GOLDEN).stdout)["checkpoints"][0]["shards"]
        target = self.copy()
        path = os.path.join(target, CHECKPOINT, "shard-00001.safetensors")
        self.flip(path, os.path.getsize(path) - 1)
        done = read(target)
        last = shards["1"][-1]["name"]
        self.assertRegex(done.stderr, r"shard-00001\.safetensors: chunk \d+ .*" + re.escape(f"tensor '{last}'"))

    def test_swapped_chunks_truncation_and_missing_files_are_found(self):
        name = os.path.join(CHECKPOINT, "shard-00000.safetensors")
        target = self.copy()
        with open(os.path.join(target, name), "r+b") as file:
            data = file.read()
            length = 8 + int.from_bytes(data[:8], "little")
            file.seek(length)
            file.write(data[length + 16:length + 32] + data[length:length + 16])
        self.assertEqual(read(target).returncode, 4)
        for size in (0, 7, 4096, len(data) - 1):
            target = self.copy()
            os.truncate(os.path.join(target, name), size)
            self.assertEqual(read(target).returncode, 4)
        for missing in ("shard-00000.safetensors", "shard-00001.index", "MANIFEST"):
            target = self.copy()
            os.remove(os.path.join(target, CHECKPOINT, missing))
            self.assertEqual(read(target).returncode, 4, missing)
        target = self.copy()
        link = os.path.join(target, CHECKPOINT, "shard-00000.index")
        os.remove(link)
        os.symlink(os.path.join(GOLDEN, CHECKPOINT, "shard-00000.index"), link)
        self.assertEqual(read(target).returncode, 4)

    def test_without_commit_a_checkpoint_is_not_there(self):
        target = self.copy()
        os.remove(os.path.join(target, CHECKPOINT, "COMMIT"))
        self.assertEqual(json.loads(read(target).stdout)["checkpoints"], [])
        self.assertEqual(read(os.path.join(target, CHECKPOINT)).returncode, 4)

    def test_usage(self):
        self.assertEqual(read("/nonexistent").returncode, 2)


class TestGoldenChunks(unittest.TestCase):
    """Compressed chunks, and a checkpoint that refers to another."""

    def setUp(self):
        self.scratch = tempfile.mkdtemp(prefix="ckpt-reader-")
        self.addCleanup(shutil.rmtree, self.scratch)
        self.job = os.path.join(self.scratch, "job")
        shutil.copytree(GOLDEN_CHUNKS, self.job)

    def test_reads_every_codec_and_references(self):
        done = read(self.job)
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second = json.loads(done.stdout)["checkpoints"]
        self.assertEqual(first["origins"], [])
        self.assertEqual(second["origins"], [first["checkpoint"]])
        self.assertLess(second["bytes"], first["bytes"] // 2)
        import read_v1
        if read_v1.ZSTD is not None:
            self.assertEqual(first["unchecked"] + second["unchecked"], 0)

    def test_planes_are_what_the_page_says(self):
        import read_v1
        words = [0x3f80, 0x8001, 0x7fff, 0x0000, 0xc2a5]
        rotated = [((word << 1) | (word >> 15)) & 0xffff for word in words]
        stored = b""
        for shift in (8, 0):
            plane = bytes((word >> shift) & 255 for word in rotated)
            stored += b"\0" + len(plane).to_bytes(4, "little") + plane
        raw = b"".join(word.to_bytes(2, "little") for word in words)
        self.assertEqual(read_v1.decode_planes(stored, len(raw), 2), raw)
        with self.assertRaises(read_v1.Damage):
            read_v1.decode_planes(stored[:-1], len(raw), 2)

    def test_flipped_bytes_are_found_in_both(self):
        for checkpoint in ("s1.e1.a1", "s2.e1.a1"):
            path = os.path.join(self.job, checkpoint, "shard-00000.safetensors")
            size = os.path.getsize(path)
            for at in range(4096, size, size // 7):
                with open(path, "r+b") as file:
                    file.seek(at)
                    byte = file.read(1)[0]
                    file.seek(at)
                    file.write(bytes([byte ^ 4]))
                done = read(self.job)
                self.assertEqual(done.returncode, 4, f"{checkpoint} byte {at}")
                self.assertIn("is damaged", done.stderr)
                with open(path, "r+b") as file:
                    file.seek(at)
                    file.write(bytes([byte]))

    def test_a_bare_copy_names_what_it_lacks(self):
        target = os.path.join(self.scratch, "elsewhere", "copy")
        shutil.copytree(os.path.join(self.job, "s2.e1.a1"), target)
        done = read(target)
        self.assertEqual(done.returncode, 4)
        self.assertIn("refers to s1.e1.a1 (uid ", done.stderr)


class TestCheckpointsOfTheDay(unittest.TestCase):
    def test_reads_them(self):
        directories = [d for d in os.environ.get("CKPT_CHECKPOINT_DIR", "").split(":") if d]
        if not directories:
            self.skipTest("CKPT_CHECKPOINT_DIR is not set: only golden files were read")
        for directory in directories:
            done = read(directory)
            self.assertEqual(done.returncode, 0, f"{directory}: {done.stderr}")


if __name__ == "__main__":
    unittest.main()
