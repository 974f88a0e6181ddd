"""XXH3-128, and XXH3-64 for 17 to 128 bytes (all that the checkpoint format needs), from the public
description of the algorithm. Plain Python, for checking a reader against another: slow on purpose."""

import struct

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
_M32 = 0xFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1 = 0x9E3779B185EBCA87
_P64_2 = 0xC2B2AE3D27D4EB4F
_P64_3 = 0x165667B19E3779F9
_P64_4 = 0x85EBCA77C2B2AE63
_P64_5 = 0x27D4EB2F165667C5


def _r32(data, at):
    return int.from_bytes(data[at:at + 4], "little")


def _r64(data, at):
    return int.from_bytes(data[at:at + 8], "little")


def _swap(value, size):
    return int.from_bytes(value.to_bytes(size, "little"), "big")


def _fold(a, b):
    product = a * b
    return (product & _M64) ^ (product >> 64)


def _avalanche(h):
    h ^= h >> 37
    h = h * 0x165667919E3779F9 & _M64
    return h ^ h >> 32


def _avalanche64(h):
    h ^= h >> 33
    h = h * _P64_2 & _M64
    h ^= h >> 29
    h = h * _P64_3 & _M64
    return h ^ h >> 32


def _mix16(data, at, secret_at, seed):
    return _fold(_r64(data, at) ^ (_r64(_SECRET, secret_at) + seed & _M64),
                 _r64(data, at + 8) ^ (_r64(_SECRET, secret_at + 8) - seed & _M64))


def _mix32(acc, data, at1, at2, secret_at, seed):
    low, high = acc
    low = low + _mix16(data, at1, secret_at, seed) & _M64
    low ^= _r64(data, at2) + _r64(data, at2 + 8) & _M64
    high = high + _mix16(data, at2, secret_at + 16, seed) & _M64
    high ^= _r64(data, at1) + _r64(data, at1 + 8) & _M64
    return low, high


def _short(data, seed):
    n = len(data)
    if n == 0:
        return (_avalanche64(seed ^ _r64(_SECRET, 64) ^ _r64(_SECRET, 72)),
                _avalanche64(seed ^ _r64(_SECRET, 80) ^ _r64(_SECRET, 88)))
    if n <= 3:
        low = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
        swapped = _swap(low, 4)
        high = (swapped << 13 | swapped >> 19) & _M32
        return (_avalanche64(low ^ ((_r32(_SECRET, 0) ^ _r32(_SECRET, 4)) + seed & _M64)),
                _avalanche64(high ^ ((_r32(_SECRET, 8) ^ _r32(_SECRET, 12)) - seed & _M64)))
    if n <= 8:
        seed ^= _swap(seed & _M32, 4) << 32
        keyed = _r32(data, 0) + (_r32(data, n - 4) << 32)
        keyed ^= (_r64(_SECRET, 16) ^ _r64(_SECRET, 24)) + seed & _M64
        product = keyed * (_P64_1 + (n << 2) & _M64)
        low, high = product & _M64, product >> 64
        high = high + (low << 1) & _M64
        low ^= high >> 3
        low ^= low >> 35
        low = low * 0x9FB21C651E98DF25 & _M64
        low ^= low >> 28
        return low, _avalanche(high)
    flip_low = (_r64(_SECRET, 32) ^ _r64(_SECRET, 40)) - seed & _M64
    flip_high = (_r64(_SECRET, 48) ^ _r64(_SECRET, 56)) + seed & _M64
    first, last = _r64(data, 0), _r64(data, n - 8)
    product = (first ^ last ^ flip_low) * _P64_1
    low, high = product & _M64, product >> 64
    low = low + ((n - 1) << 54) & _M64
    last ^= flip_high
    high = high + last + (last & _M32) * (_P32_2 - 1) & _M64
    low ^= _swap(high, 8)
    product = low * _P64_2
    return _avalanche(product & _M64), _avalanche((product >> 64) + high * _P64_2 & _M64)


def _middle(data, seed):
    n = len(data)
    acc = (n * _P64_1 & _M64, 0)
    if n <= 128:
        for i in range((n - 1) // 32, -1, -1):
            acc = _mix32(acc, data, 16 * i, n - 16 * (i + 1), 32 * i, seed)
    else:
        for i in range(4):
            acc = _mix32(acc, data, 32 * i, 32 * i + 16, 32 * i, seed)
        acc = (_avalanche(acc[0]), _avalanche(acc[1]))
        for i in range(4, n // 32):
            acc = _mix32(acc, data, 32 * i, 32 * i + 16, 3 + 32 * (i - 4), seed)
        acc = _mix32(acc, data, n - 16, n - 32, 103, -seed & _M64)
    low, high = acc
    mixed = low * _P64_1 + high * _P64_4 + (n - seed) * _P64_2 & _M64
    return _avalanche(low + high & _M64), -_avalanche(mixed) & _M64


def _long(data, seed):
    n = len(data)
    secret = b"".join(
        struct.pack("<QQ", _r64(_SECRET, 16 * i) + seed & _M64, _r64(_SECRET, 16 * i + 8) - seed & _M64)
        for i in range(12))
    acc = [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1]
    keys = [struct.unpack_from("<8Q", secret, 8 * i) for i in range(17)]

    def accumulate(at, key):
        lanes = struct.unpack_from("<8Q", data, at)
        for i in range(8):
            mixed = lanes[i] ^ key[i]
            acc[i ^ 1] += lanes[i]
            acc[i] += (mixed & _M32) * (mixed >> 32)
        for i in range(8):
            acc[i] &= _M64

    blocks = (n - 1) // 1024
    for block in range(blocks):
        for stripe in range(16):
            accumulate(1024 * block + 64 * stripe, keys[stripe])
        for i in range(8):
            acc[i] = ((acc[i] ^ acc[i] >> 47) ^ keys[16][i]) * _P32_1 & _M64
    for stripe in range((n - 1 - 1024 * blocks) // 64):
        accumulate(1024 * blocks + 64 * stripe, keys[stripe])
    accumulate(n - 64, struct.unpack_from("<8Q", secret, 121))

    def merge(secret_at, start):
        for i in range(4):
            start += _fold(acc[2 * i] ^ _r64(secret, secret_at + 16 * i),
                           acc[2 * i + 1] ^ _r64(secret, secret_at + 16 * i + 8))
        return _avalanche(start & _M64)

    return merge(11, n * _P64_1 & _M64), merge(117, ~(n * _P64_2) & _M64)


def xxh3_128(data, seed=0):
    """16 bytes, in the algorithm's canonical order."""
    if len(data) <= 16:
        low, high = _short(data, seed)
    elif len(data) <= 240:
        low, high = _middle(data, seed)
    else:
        low, high = _long(data, seed)
    return high.to_bytes(8, "big") + low.to_bytes(8, "big")


def xxh3_64(data, seed=0):
    """A number; 17 to 128 bytes only."""
    n = len(data)
    if not 17 <= n <= 128:
        raise ValueError("xxh3_64 is written for 17 to 128 bytes")
    acc = n * _P64_1
    for i in range((n - 1) // 32, -1, -1):
        acc += _mix16(data, 16 * i, 32 * i, seed)
        acc += _mix16(data, n - 16 * (i + 1), 32 * i + 16, seed)
    return _avalanche(acc & _M64)
