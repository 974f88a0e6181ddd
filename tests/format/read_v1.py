#!/usr/bin/env python3
"""An independent reader of the checkpoint format, version 1 (docs/format/v1.md), in plain Python 3.9.

    read_v1.py DIRECTORY

DIRECTORY is a checkpoint, or a job with its checkpoints. Every byte of every file is checked. Prints
JSON. Exit: 0 whole, 4 damaged (each damage on a line of stderr, with shard, chunk and tensors), 2 usage.
Compressed chunks need some zstd (Python's own from 3.14 on, the module zstandard, or the C library);
without any, only their check is compared, and "unchecked" says how many there were.
It shares nothing with the C++ reader but the page, and is meant to be read next to it.
"""

import base64
import ctypes
import ctypes.util
import json
import os
import re
import struct
import sys

from xxh3 import xxh3_64, xxh3_128

# number: (name, element bytes, container, last dimension added in the container)
DTYPES = {
    1: ("BOOL", 1, "BOOL", None), 2: ("U8", 1, "U8", None), 3: ("I8", 1, "I8", None),
    4: ("U16", 2, "U16", None), 5: ("I16", 2, "I16", None), 6: ("U32", 4, "U32", None),
    7: ("I32", 4, "I32", None), 8: ("U64", 8, "U64", None), 9: ("I64", 8, "I64", None),
    10: ("F16", 2, "F16", None), 11: ("BF16", 2, "BF16", None), 12: ("F32", 4, "F32", None),
    13: ("F64", 8, "F64", None), 14: ("F8_E4M3", 1, "F8_E4M3", None),
    15: ("F8_E5M2", 1, "F8_E5M2", None), 16: ("C64", 8, "F32", 2), 17: ("C128", 16, "F64", 2),
    18: ("F4X2", 1, "U8", None),
}
PLACEMENTS = ("unsharded", "replicated", "sharded", "per_rank")
CHECKPOINT_NAME = re.compile(r"s(0|-?[1-9][0-9]*)\.e(0|[1-9][0-9]*)\.a(0|[1-9][0-9]*)")
MANIFEST_MAX, RECORD_MAX, INDEX_MAX = 64 << 20, 16 << 20, 1 << 30


class Damage(Exception):
    pass


def need(condition, why):
    if not condition:
        raise Damage(why)


def read_file(directory, name, most):
    path = os.path.join(directory, name)
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        raise Damage(f"{name}: {error.strerror}")
    with os.fdopen(fd, "rb") as file:
        need(os.fstat(fd).st_size <= most, f"{name}: too large")
        return file.read()


# --- canonical JSON ---

def spell(document):
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def object_of(pairs):
    built = dict(pairs)
    need(len(built) == len(pairs), "a key comes twice")
    return built


def refuse_constant(name):
    raise Damage(f"{name} is no JSON")


def parse_json(data, what):
    try:
        text = data.decode("utf-8")
        document = json.loads(text, object_pairs_hook=object_of, parse_constant=refuse_constant)
        need(spell(document) == text, "not in canonical spelling")
    except Damage as damage:
        raise Damage(f"{what}: {damage}")
    except (ValueError, RecursionError) as error:
        raise Damage(f"{what}: no JSON ({error})")
    need(isinstance(document, dict), f"{what}: no object")
    return document


def check_rising(node, what):
    """Keys rise in every object that is not a value."""
    if isinstance(node, list):
        for child in node:
            check_rising(child, what)
    elif isinstance(node, dict):
        keys = [key.encode() for key in node]
        need(keys == sorted(keys), f"{what}: keys out of order")
        for key, child in node.items():
            if key != "value":
                check_rising(child, what)


def open_document(data, kind, what):
    document = parse_json(data, what)
    blank = dict(document, digest="")
    digest = xxh3_128(spell(blank).encode()).hex()
    need(document.get("digest") == digest, f"{what}: its bytes do not have its digest")
    need(document.get("kind") == kind, f"{what}: another kind of file")
    need(document.get("format") == 1, f"{what}: format {document.get('format')}, this reads 1")
    check_rising(document, what)
    return document


# --- values: decoded to Python, spelled again, compared ---

def decode_base64(text):
    raw = base64.b64decode(text, validate=True)
    need(base64.b64encode(raw).decode() == text, "base64 not canonical")
    return raw


def check_value(node, depth=0):
    """Whether `node` is a value in its one spelling."""
    if node is None or isinstance(node, (bool, float, str)):
        return
    if isinstance(node, int):
        need(-2 ** 63 <= node < 2 ** 63, "an integer beyond int64 without its tag")
        return
    if isinstance(node, dict) and any(key.startswith("$") for key in node):
        return check_tagged(node, depth)
    need(depth < 16, "values nested deeper than 16")
    for child in node.values() if isinstance(node, dict) else node:
        check_value(child, depth + 1)


def check_tagged(node, depth):
    need(len(node) == 1, "a tag is not alone")
    (tag, content), = node.items()
    if tag == "$f":
        need(re.fullmatch("[0-9a-f]{16}", content), "$f is not 16 hex digits")
        number = struct.unpack(">d", bytes.fromhex(content))[0]
        need(number != number or abs(number) == float("inf") or content == "8" + "0" * 15,
             "$f of a float that needs no tag")
    elif tag == "$i":
        need(re.fullmatch("-?[1-9][0-9]{0,4095}", content), "$i is no decimal")
        need(len(content) > 20 or not -2 ** 63 <= int(content) < 2 ** 63, "$i of an int64")
    elif tag == "$b":
        decode_base64(content)
    elif tag == "$s":
        try:
            decode_base64(content).decode("utf-8")
        except UnicodeDecodeError:
            return
        raise Damage("$s of a string that is UTF-8")
    elif tag in ("$t", "$d"):
        need(depth < 16 and isinstance(content, list), "values nested too deep, or no list")
        (check_pairs if tag == "$d" else check_items)(content, depth + 1)
    else:
        raise Damage(f"unknown tag {tag}")


def check_items(items, depth):
    for item in items:
        check_value(item, depth)


def check_pairs(pairs, depth):
    plain, seen = True, set()
    for pair in pairs:
        need(isinstance(pair, list) and len(pair) == 2, "an item of a dict is no pair")
        key, value = pair
        scalar = not isinstance(key, (list, dict)) or (
            isinstance(key, dict) and len(key) == 1 and next(iter(key)) in ("$f", "$i", "$b", "$s"))
        need(scalar, "a dict's key is no scalar")
        check_value(key, depth)
        check_value(value, depth)
        need(spell(key) not in seen, "a dict's key comes twice")
        seen.add(spell(key))
        plain = plain and isinstance(key, str) and not key.startswith("$")
    need(not plain, "a tagged dict that could be plain")


# --- codecs ---

def find_zstd():
    """A function (frame, raw bytes) -> bytes, or None."""
    try:
        from compression import zstd
        return lambda frame, size: zstd.decompress(frame)
    except ImportError:
        pass
    try:
        import zstandard
        return lambda frame, size: zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)
    except ImportError:
        pass
    name = ctypes.util.find_library("zstd")
    if not name:
        return None
    library = ctypes.CDLL(name)
    library.ZSTD_decompress.restype = ctypes.c_size_t

    def decompress(frame, size):
        out = ctypes.create_string_buffer(size)
        got = library.ZSTD_decompress(out, ctypes.c_size_t(size), frame, ctypes.c_size_t(len(frame)))
        need(got == size, "a zstd frame does not decode")
        return out.raw

    return decompress


ZSTD = find_zstd()


def decode_zstd(stored, size):
    try:
        raw = ZSTD(stored, size)
    except Damage:
        raise
    except Exception as error:  # each library has its own
        raise Damage(f"a zstd frame does not decode ({error})")
    need(len(raw) == size, "a zstd frame of another size")
    return raw


def decode_planes(stored, size, width):
    need(width in (2, 4, 8) and size % width == 0, "planes of impossible elements")
    count, at = size // width, 0
    words = bytearray(size)  # rotated, most significant byte first
    for plane in range(width):
        need(at + 5 <= len(stored), "planes cut short")
        method, length = struct.unpack_from("<BI", stored, at)
        data = stored[at + 5:at + 5 + length]
        at += 5 + length
        need(method < 2 and len(data) == length, "a plane that cannot be")
        words[plane::width] = need_size(data if method == 0 else decode_zstd(data, count), count)
    need(at == len(stored), "bytes behind the planes")
    letter, top = {2: "H", 4: "I", 8: "Q"}[width], 8 * width - 1
    rotated = struct.unpack(f">{count}{letter}", words)
    return struct.pack(f"<{count}{letter}", *((word >> 1) | ((word & 1) << top) for word in rotated))


def need_size(data, size):
    need(len(data) == size, "a plane of another size")
    return data


# --- shard and index ---

def volume(shape):
    count = 1
    for dim in shape:
        count *= dim
    return count


def key_of(tensor):
    name = tensor["name"].replace("%", "%25").replace("#", "%23")
    if tensor["name"] == "__metadata__":
        name = "%5F_metadata__"
    if tensor["offset"] == [0] * len(tensor["shape"]) and tensor["size"] == tensor["shape"]:
        return name
    return name + "#" + ",".join(f"{o}:{o + s}" for o, s in zip(tensor["offset"], tensor["size"]))


class Cursor:
    def __init__(self, data, what):
        self.data, self.at, self.what = data, 0, what

    def take(self, form):
        size = struct.calcsize("<" + form)
        need(self.at + size <= len(self.data), f"{self.what}: cut short")
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += size
        return values if len(values) != 1 else values[0]


def decode_tensor(cursor):
    name = cursor.take(f"{cursor.take('I')}s")
    number, placement, dims, zero = cursor.take("4B")
    need(number in DTYPES and placement < 4 and dims <= 32 and zero == 0 and len(name) <= 4096,
         f"{cursor.what}: a tensor that cannot be")
    shape, offset, size = (list(struct.unpack(f"<{dims}Q", cursor.take(f"{8 * dims}s")))
                           for _ in range(3))
    begin, end = cursor.take("2Q")
    tensor = {"name": name.decode("utf-8"), "dtype": number, "placement": PLACEMENTS[placement],
              "shape": shape, "offset": offset, "size": size, "begin": begin, "end": end}
    inside = all(o + s <= whole for o, s, whole in zip(offset, size, shape))
    need(inside and end - begin == volume(size) * DTYPES[number][1],
         f"{cursor.what}: tensor '{tensor['name']}' has an impossible box or size")
    return tensor


def chunk_ranges(tensors, header_bytes, chunk_bytes):
    ranges, runs = [(0, header_bytes)], []
    for tensor in tensors:
        if tensor["begin"] == tensor["end"]:
            continue
        width = DTYPES[tensor["dtype"]][1]
        if runs and runs[-1][0] == width:
            runs[-1][2] = tensor["end"]
        else:
            runs.append([width, tensor["begin"], tensor["end"]])
    for _, begin, end in runs:
        ranges += [(at, min(at + chunk_bytes, end)) for at in range(begin, end, chunk_bytes)]
    return ranges


def check_order(tensors, header_bytes, stream_bytes, what):
    at, last = header_bytes, None
    for tensor in tensors:
        order = (-DTYPES[tensor["dtype"]][1], tensor["name"].encode(), tensor["offset"], tensor["size"])
        need(last is None or last < order, f"{what}: tensor '{tensor['name']}' out of order")
        need(tensor["begin"] == at, f"{what}: tensor '{tensor['name']}' leaves a hole or overlaps")
        at, last = tensor["end"], order
    need(at == stream_bytes, f"{what}: tensors do not cover the shard")


def decode_index(data, what, uid, shard, file_bytes):
    need(len(data) >= 96 and data[:8] == b"CKPTIDX1", f"{what}: not an index")
    need(xxh3_128(data[:-16]) == data[-16:], f"{what}: its bytes do not have its digest")
    cursor = Cursor(data[8:-16], what)
    version, features = cursor.take("2I")
    need(version == 1 and features in (0, 1), f"{what}: version {version}, features {features}")
    need(cursor.take("16s") == uid, f"{what}: of another checkpoint")
    need(cursor.take("I") == shard, f"{what}: of another shard")
    count = cursor.take("I")
    chunk_count, header_bytes, chunk_bytes, stream_bytes, declared = cursor.take("5Q")
    need(declared == file_bytes, f"{what}: the shard has {file_bytes} bytes, not {declared}")
    need(0 < chunk_bytes <= 256 << 20 and chunk_bytes % 16 == 0, f"{what}: chunk size")
    need(header_bytes % 4096 == 0 and 0 < header_bytes <= stream_bytes, f"{what}: header size")
    tensors = [decode_tensor(cursor) for _ in range(count)]
    check_order(tensors, header_bytes, stream_bytes, what)
    origins = decode_origins(cursor, what, uid) if features else []
    need(cursor.at + 48 * chunk_count == len(cursor.data), f"{what}: number of chunks")
    chunks, stored = [], 0
    for begin, end in chunk_ranges(tensors, header_bytes, chunk_bytes):
        chunk = decode_chunk(cursor, f"{what}: chunk {len(chunks)}", begin, end, origins, stored)
        need(chunks or (chunk["origin"] == 0 and chunk["codec"] == 0), f"{what}: the header is not its own")
        stored += 0 if chunk["origin"] else chunk["bytes"]
        chunks.append(chunk)
    need(len(chunks) == chunk_count and stored == file_bytes, f"{what}: chunks do not cover the file")
    used = {chunk["origin"] for chunk in chunks}
    need(all(k + 1 in used for k in range(len(origins))), f"{what}: an origin that nothing refers to")
    return {"tensors": tensors, "chunks": chunks, "origins": origins, "header_bytes": header_bytes}


def check_file_name(name):
    need(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", name), f"'{name}' is no file name")


def decode_origins(cursor, what, uid):
    count, zero = cursor.take("2I")
    need(1 <= count <= 4 and zero == 0, f"{what}: number of origins")
    origins = []
    for _ in range(count):
        origin_uid, epoch, step, attempt, shard, size, length = cursor.take("16sQqIIQI")
        file = cursor.take(f"{length}s").decode()
        check_file_name(file)
        need(origin_uid != uid, f"{what}: refers to itself")
        need(not origins or origins[-1]["order"] < (epoch, step, attempt), f"{what}: origins out of order")
        origins.append({"uid": origin_uid, "order": (epoch, step, attempt), "shard": shard, "bytes": size, "file": file,
                        "name": f"s{step}.e{epoch}.a{attempt}"})
    return origins


def decode_chunk(cursor, what, begin, end, origins, stored):
    codec, origin, check, number, raw, offset, size, digest = cursor.take("BBHI3Q16s")
    need(codec < 3 and origin <= len(origins), f"{what}: codec {codec} or origin {origin} is not known")
    need(raw == end - begin and (size == raw and check == 0 if codec == 0 else 0 < size < raw), f"{what}: size")
    if origin:
        need(number > 0 and offset + size <= origins[origin - 1]["bytes"], f"{what}: beyond its origin")
    else:
        need(number == 0 and offset == stored, f"{what}: place")
    return {"begin": begin, "end": end, "codec": codec, "origin": origin, "number": number, "check": check,
            "offset": offset, "bytes": size, "digest": digest}


def check_header(data, index, what):
    length, = struct.unpack_from("<Q", data)
    text = data[8:index["header_bytes"]]
    need(length == len(text), f"{what}: header length")
    bare = text.rstrip(b" ")
    room = 8 + len(bare) + len(bare) // 8 + 512
    need(len(data[:index["header_bytes"]]) == (room + 4095) // 4096 * 4096, f"{what}: header padding")
    entries = parse_json(bare, f"{what}, header")
    need(entries.pop("__metadata__", None) == {"ckpt": "1", "format": "pt"}, f"{what}: metadata")
    expected = {}
    for tensor in index["tensors"]:
        _, _, container, last = DTYPES[tensor["dtype"]]
        shape = tensor["size"] + ([last] if last else [])
        offsets = [tensor["begin"] - index["header_bytes"], tensor["end"] - index["header_bytes"]]
        expected[key_of(tensor)] = {"dtype": container, "shape": shape, "data_offsets": offsets}
    need(list(entries.items()) == list(expected.items()), f"{what}: header and index differ")


def open_holders(directory, file, index):
    """The shard's own file, then those of its origins, which lie beside the checkpoint."""
    paths = [os.path.join(directory, file["name"])]
    for origin in index["origins"]:
        beside = os.path.join(os.path.dirname(os.path.abspath(directory)), origin["name"])
        path = os.path.join(beside, origin["file"])
        need(os.path.isfile(path) and os.path.getsize(path) == origin["bytes"],
             f"{file['name']}: refers to {origin['name']} (uid {origin['uid'].hex()}), which is not there whole")
        paths.append(path)
    return [open(path, "rb") for path in paths]


def width_of(index, chunk):
    for tensor in index["tensors"]:
        if tensor["begin"] <= chunk["begin"] < tensor["end"]:
            return DTYPES[tensor["dtype"]][1]
    return 1


def read_chunk(holders, index, chunk):
    """The raw bytes; None if they are compressed and there is no zstd here."""
    holder = holders[chunk["origin"]]
    holder.seek(chunk["offset"])
    stored = holder.read(chunk["bytes"])
    if chunk["codec"] == 0:
        return stored
    need(int.from_bytes(xxh3_128(stored)[14:], "big") == chunk["check"], "its stored bytes are not those written")
    if ZSTD is None:
        return None
    size = chunk["end"] - chunk["begin"]
    if chunk["codec"] == 1:
        return decode_zstd(stored, size)
    return decode_planes(stored, size, width_of(index, chunk))


def check_chunks(directory, file, index, uid, damages):
    """One chunk in memory at a time."""
    holders = open_holders(directory, file, index)
    try:
        for number, chunk in enumerate(index["chunks"]):
            begin, end = chunk["begin"], chunk["end"]
            place = (uid, file["shard"], number)
            if chunk["origin"]:
                origin = index["origins"][chunk["origin"] - 1]
                place = (origin["uid"], origin["shard"], chunk["number"])
            why = "it does not have its digest"
            try:
                data = read_chunk(holders, index, chunk)
                if data is None:
                    index["unchecked"] = index.get("unchecked", 0) + 1
                    continue
                if xxh3_128(data, xxh3_64(place[0] + struct.pack("<IQ", *place[1:]))) == chunk["digest"]:
                    continue
            except Damage as damage:
                why = str(damage)
            names = [t["name"] for t in index["tensors"] if t["begin"] < end and t["end"] > begin]
            where = ", ".join(f"tensor '{name}'" for name in names) if number else "the header"
            damages.append(f"{file['name']}: chunk {number} (bytes {begin} to {end}) is damaged: {where}: {why}")
    finally:
        for holder in holders:
            holder.close()


# --- checkpoint ---

def layouts_of(manifest):
    """rank -> name -> (table row, offset, size)."""
    ranks = manifest["ranks"]
    need(len(ranks["tensors_of"]) == manifest["world"], "MANIFEST: tensors_of is not by rank")
    layouts = []
    for rank, number in enumerate(ranks["tensors_of"]):
        layout = {}
        for row_number in ranks["tensors"][number]:
            row = manifest["tensors"][row_number]
            offset, size = [0] * len(row["shape"]), row["shape"]
            if "boxes_like" in row:
                like = row["boxes_like"]
                need(like < row_number and "boxes" in manifest["tensors"][like] and "boxes" not in row,
                     f"MANIFEST: '{row['name']}' is cut like a tensor that has no boxes")
                row = dict(row, boxes=manifest["tensors"][like]["boxes"],
                           boxes_of=manifest["tensors"][like]["boxes_of"])
            if "boxes" in row:
                need(row["boxes_of"][rank] >= 0, f"MANIFEST: '{row['name']}' has no box for rank {rank}")
                offset, size = row["boxes"][row["boxes_of"][rank]]
            need(row["name"] not in layout, f"MANIFEST: '{row['name']}' twice on rank {rank}")
            layout[row["name"]] = (row, offset, size)
        layouts.append(layout)
    return layouts


def overlap(a, b):
    return all(x < y + t and y < x + s
               for x, s, y, t in zip(a["offset"], a["size"], b["offset"], b["size"])) and \
        volume(a["size"]) and volume(b["size"])


def check_cover(pieces, box, name, where):
    offset, size = box
    inside = all(o <= x and x + s <= o + whole for piece in pieces
                 for o, whole, x, s in zip(offset, size, piece["offset"], piece["size"]))
    need(inside and sum(volume(piece["size"]) for piece in pieces) == volume(size) and
         not any(overlap(a, b) for i, a in enumerate(pieces) for b in pieces[:i]),
         f"tensor '{name}' is not covered exactly once {where}")


def check_covers(layouts, indexes):
    """What the shards hold together, against what the ranks describe."""
    pieces, boxes = {}, {}
    for shard, index in indexes.items():
        for tensor in index["tensors"]:
            row = layouts[shard].get(tensor["name"], (None,))[0]
            need(row is not None and row["dtype"] == DTYPES[tensor["dtype"]][0] and
                 row["placement"] == tensor["placement"] and row["shape"] == tensor["shape"] and
                 "tied_to" not in row, f"tensor '{tensor['name']}' of shard {shard} differs from MANIFEST")
            own = tensor["placement"] in ("per_rank", "unsharded")
            pieces.setdefault((tensor["name"], shard if own else None), []).append(tensor)
    for rank, layout in enumerate(layouts):
        for name, (row, offset, size) in layout.items():
            if "tied_to" in row:
                need(row["tied_to"] in layout, f"'{name}' is tied to what rank {rank} does not hold")
                continue
            own = row["placement"] in ("per_rank", "unsharded")
            whole = ([0] * len(row["shape"]), row["shape"])
            boxes[(name, rank if own else None)] = whole if row["placement"] == "sharded" else (offset, size)
    for (name, rank), box in boxes.items():
        where = "by all shards" if rank is None else f"by the shard of rank {rank}"
        check_cover(pieces.pop((name, rank), []), box, name, where)
    need(not pieces, "shards hold tensors that no rank describes")


def check_items_table(manifest):
    for item in manifest["items"]:
        if item["kind"] == "blob":
            decode_base64(item["bytes"])
        else:
            check_value(item["value"])
    ranks = manifest["ranks"]
    need(len(ranks["items_of"]) == manifest["world"], "MANIFEST: items_of is not by rank")
    shared = {}
    for number in ranks["items_of"]:
        for position in ranks["items"][number]:
            item = manifest["items"][position]
            name = (item["kind"], item["name"])
            if item["scope"] == "shared":
                need(shared.setdefault(name, position) == position, f"shared '{item['name']}' differs")


def check_manifest(manifest):
    need(manifest["features"] == {}, f"MANIFEST needs features {manifest['features']}")
    packed = struct.pack("<QqI", manifest["epoch"], manifest["step"], manifest["attempt"])
    uid = xxh3_128(bytes.fromhex(manifest["job"]) + packed)
    need(manifest["uid"] == uid.hex(), "MANIFEST: its uid is not its own")
    shards = [file["shard"] for file in manifest["files"]]
    need(shards == sorted(set(shards)) and all(0 <= s < manifest["world"] for s in shards),
         "MANIFEST: files are not by rank")
    check_items_table(manifest)
    return uid


def attempt_name(manifest):
    return f"s{manifest['step']}.e{manifest['epoch']}.a{manifest['attempt']}"


def read_checkpoint(directory, damages):
    data = read_file(directory, "MANIFEST", MANIFEST_MAX)
    commit = open_document(read_file(directory, "COMMIT", RECORD_MAX), "COMMIT", "COMMIT")
    manifest = open_document(data, "MANIFEST", "MANIFEST")
    need(commit["manifest_digest"] == xxh3_128(data).hex(), "COMMIT is for another MANIFEST")
    need(commit["job"] == manifest["job"] and commit["attempt"] == attempt_name(manifest),
         "COMMIT is of another checkpoint")
    decode_base64(commit["coordinator"])
    if os.path.lexists(os.path.join(directory, "DRAINING")):
        mark = open_document(read_file(directory, "DRAINING", RECORD_MAX), "DRAINING", "DRAINING")
        need(mark["attempt"] == attempt_name(manifest), "DRAINING is of another checkpoint")
    uid = check_manifest(manifest)
    layouts = layouts_of(manifest)
    indexes = {}
    for file in manifest["files"]:
        try:
            indexes[file["shard"]] = read_shard(directory, file, uid, damages)
        except (Damage, UnicodeDecodeError) as damage:
            damages.append(str(damage))
    if len(indexes) == len(manifest["files"]):
        named = [origin["checkpoint"] for origin in manifest.get("origins", [])]
        need(set(named) == {o["name"] for index in indexes.values() for o in index["origins"]},
             "MANIFEST names other origins than the indexes")
        check_covers(layouts, indexes)
    return summary(manifest, indexes)


def read_shard(directory, file, uid, damages):
    for name in (file["name"], file["index"]):
        check_file_name(name)
        need(not os.path.islink(os.path.join(directory, name)), f"{name}: a symbolic link")
    data = read_file(directory, file["index"], INDEX_MAX)
    need(len(data) == file["index_bytes"] and data[-16:].hex() == file["index_digest"],
         f"{file['index']}: not the index that MANIFEST names")
    path = os.path.join(directory, file["name"])
    need(os.path.isfile(path), f"{file['name']}: missing")
    size = os.path.getsize(path)
    need(size == file["bytes"], f"{file['name']}: {size} bytes, MANIFEST says {file['bytes']}")
    index = decode_index(data, file["index"], uid, file["shard"], size)
    before = len(damages)
    check_chunks(directory, file, index, uid, damages)
    if len(damages) == before:
        with open(path, "rb") as shard:
            check_header(shard.read(index["header_bytes"]), index, file["name"])
    return index


def summary(manifest, indexes):
    return {
        "checkpoint": attempt_name(manifest), "job": manifest["job"], "uid": manifest["uid"],
        "mode": manifest["mode"], "writer": manifest["writer"], "world": manifest["world"],
        "bytes": sum(file["bytes"] for file in manifest["files"]),
        "chunks": sum(len(index["chunks"]) for index in indexes.values()),
        "unchecked": sum(index.get("unchecked", 0) for index in indexes.values()),
        "origins": sorted({o["name"] for index in indexes.values() for o in index["origins"]}),
        "tensors": [{key: row[key] for key in ("name", "dtype", "placement", "shape", "tied_to")
                     if key in row} for row in manifest["tensors"]],
        "shards": {str(shard): [{"name": t["name"], "dtype": DTYPES[t["dtype"]][0],
                                 "offset": t["offset"], "shape": t["size"]} for t in index["tensors"]]
                   for shard, index in indexes.items()},
        "items": manifest["items"],
    }


def read_job(directory, damages):
    job = open_document(read_file(directory, "JOB", RECORD_MAX), "JOB", "JOB")
    result = {"job": job["job"], "epochs": {}, "checkpoints": []}
    for name in sorted(os.listdir(directory)):
        match = re.fullmatch(r"EPOCH\.([1-9][0-9]*)(\.claim)?", name)
        committed = CHECKPOINT_NAME.fullmatch(name) and os.path.lexists(os.path.join(directory, name, "COMMIT"))
        try:
            if match:
                kind = "CLAIM" if match[2] else "EPOCH"
                record = open_document(read_file(directory, name, RECORD_MAX), kind, name)
                need(record["job"] == job["job"] and record["epoch"] == int(match[1]),
                     f"{name} is of another job or epoch")
                if kind == "EPOCH":
                    result["epochs"][match[1]] = record["adopted"]
            elif committed:
                found = guarded(read_checkpoint, os.path.join(directory, name), damages)
                need(found is None or found["checkpoint"] == name, f"{name} is {found and found['checkpoint']}")
                need(found is None or found["job"] == job["job"], f"{name} is of another job")
                result["checkpoints"] += [found] if found else []
        except Damage as damage:
            damages.append(str(damage))
    return result


def guarded(read, directory, damages):
    """What `read` returns, or None and one more line in `damages`."""
    try:
        return read(directory, damages)
    except Damage as damage:
        damages.append(str(damage))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, struct.error) as error:
        damages.append(f"a structure is not what the page says: {error!r}")
    return None


def main(arguments):
    if len(arguments) != 2 or not os.path.isdir(arguments[1]):
        print(__doc__, file=sys.stderr)
        return 2
    damages = []
    is_job = os.path.lexists(os.path.join(arguments[1], "JOB"))
    result = guarded(read_job if is_job else read_checkpoint, arguments[1], damages)
    for damage in damages:
        print(damage, file=sys.stderr)
    if damages:
        return 4
    json.dump(result, sys.stdout, ensure_ascii=True, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
