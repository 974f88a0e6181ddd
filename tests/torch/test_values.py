"""The value tree: what comes back is equal in value and type; what cannot is refused by name."""

import json
import math
import random
import struct

import pytest

from libckpt import NotExpressible, values


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) and same(a[x], b[y]) for x, y in zip(a, b))
    return a == b


NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]

EXAMPLES = [
    (None, "null"), (True, "true"), (False, "false"), (0, "0"), (-1, "-1"), (2**63 - 1, "9223372036854775807"),
    (2**63, '{"$i":"9223372036854775808"}'), (-(2**63) - 1, '{"$i":"-9223372036854775809"}'),
    (1.0, "1.0"), (0.1, "0.1"), (1e16, "1e+16"), (1e-5, "1e-05"), (1.5e300, "1.5e+300"), (5e-324, "5e-324"),
    (-0.0, '{"$f":"8000000000000000"}'), (math.inf, '{"$f":"7ff0000000000000"}'), (-math.inf, '{"$f":"fff0000000000000"}'),
    (NAN_WITH_PAYLOAD, '{"$f":"fff8000000000123"}'),
    ("", '""'), ("é\u2028\x7f\"\\\n\x01", '"é\u2028\x7f\\"\\\\\\n\\u0001"'), ("\udcff", '{"$s":"/w=="}'),
    (b"", '{"$b":""}'), (b"\x00\xff", '{"$b":"AP8="}'),
    ([], "[]"), ((), '{"$t":[]}'), ({}, "{}"), ((1, [2, (3,)]), '{"$t":[1,[2,{"$t":[3]}]]}'),
    ({"b": 1, "a": 2}, '{"b":1,"a":2}'), ({"$x": 1}, '{"$d":[["$x",1]]}'),
    ({1: "a", None: "b", b"k": (), 2.5: True}, '{"$d":[[1,"a"],[null,"b"],[{"$b":"aw=="},{"$t":[]}],[2.5,true]]}'),
    ({"\udcff": 1}, '{"$d":[[{"$s":"/w=="},1]]}'),
]


@pytest.mark.parametrize("value,text", EXAMPLES, ids=[t[:30] for _, t in EXAMPLES])
def test_spelling(value, text):
    assert values.dumps(value) == text
    assert same(values.loads(text), value)


def test_random_trees(request):
    seed = random.randrange(2**32)
    print("seed", seed)
    source = random.Random(seed)

    def scalar():
        return source.choice([
            None, source.random() < 0.5, source.randrange(-(2**80), 2**80), source.randrange(-5, 5),
            struct.unpack(">d", source.randbytes(8))[0], "".join(map(chr, source.choices(range(1, 0x3000), k=4))),
            source.randbytes(3), "$" + str(source.random()),
        ])

    def tree(depth):
        kind = source.randrange(5) if depth else 4
        size = source.randrange(4)
        if kind == 0:
            return [tree(depth - 1) for _ in range(size)]
        if kind == 1:
            return tuple(tree(depth - 1) for _ in range(size))
        if kind == 2:
            return {str(i): tree(depth - 1) for i in range(size)}
        if kind == 3:
            return {scalar(): tree(depth - 1) for _ in range(size)}
        return scalar()

    for _ in range(300):
        value = tree(5)
        text = values.dumps(value)
        assert same(values.loads(text), value)
        assert values.dumps(values.loads(text)) == text
        assert json.loads(text) is not Ellipsis  # plain JSON for any other reader


class Thing:
    pass


class Int(int):
    pass


LOOP = []
LOOP.append(LOOP)


@pytest.mark.parametrize("value,where,kind", [
    ({"a": [0, 1, 2, Thing()]}, "extra['a'][3]", "Thing"),
    ({"f": lambda: 0}, "extra['f']", "function"),
    ({"s": {1}}, "extra['s']", "set"),
    ({"c": 1j}, "extra['c']", "complex"),
    ({"i": Int(3)}, "extra['i']", "Int"),
    ({(1, 2): 3}, "extra: key (1, 2)", "tuple"),
    ({"b": bytearray(b"x")}, "extra['b']", "bytearray"),
    ({"u": "\ud800"}, "extra['u']", "lone surrogates"),
    ({"n": 10**5000}, "extra['n']", "4096 digits"),
    (LOOP, "extra[0][0]", "contain itself"),
])
def test_refused_by_name(value, where, kind):
    with pytest.raises(NotExpressible) as caught:
        values.dumps(value, "extra")
    assert where in str(caught.value) and kind in str(caught.value)
    assert caught.value.code == "INVALID_ARGUMENT" and not caught.value.applied
    assert isinstance(caught.value, TypeError)


def test_depth():
    deep = 7
    for _ in range(16):
        deep = [deep]
    assert values.loads(values.dumps(deep)) == deep
    with pytest.raises(NotExpressible):
        values.dumps([deep])
