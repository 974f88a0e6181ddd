"""A slice of `./run soak jobs`, and that its judge of histories finds what is planted in them."""
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import history  # noqa: E402
import script  # noqa: E402

SECOND = 10**9


def event(kind, job="j", epoch=1, op_id=0, message="", wall=0, **data):
    return {"kind": kind, "job": job, "epoch": epoch, "op_id": op_id, "message": message, "wall_ns": wall * SECOND, "node": "",
            "data": {k: str(v) for k, v in data.items()}}


def number(events):
    return [dict(e, revision=i) for i, e in enumerate(events, 1)]


GOOD = [
    event("submitted"), event("launched"), event("running"), event("durable", step=50, attempt=1),
    event("reserved", "u", 0, 7), event("suspending", op_id=7, message="to make room for u", wall=10),
    event("released", op_id=7, wall=12, noticed_ns=1, cut_ns=2, staged_ns=3, comms_down_ns=4, released_ns=5),
    event("granted", "u", 0, 7), event("launched", "u", 1, 7), event("running", "u", 1, 7), event("done", "u", 1, 7),
    event("durable", step=60, attempt=2, staged_ns=3, durable_ns=9), event("finished", "u"),
    event("launched", epoch=2), event("resumed", epoch=2, resumed_from="ram s60.e1.a2"), event("running", epoch=2),
    event("finished", epoch=2),
]


def planted(at, *instead):
    return number(GOOD[:at] + list(instead) + GOOD[at + 1:])


PLANTED = [
    ("launched as epoch 1 after 1", planted(13, event("launched", epoch=1))),
    ("launched after it was finished", number(GOOD + [event("launched", epoch=3)])),
    ("becomes durable again", planted(4, event("durable", step=50, attempt=1), GOOD[4])),
    ("durable before it was staged", planted(11, event("durable", step=60, attempt=2, staged_ns=3, durable_ns=2))),
    ("cut_ns is before noticed_ns", planted(6, event("released", op_id=7, wall=12, noticed_ns=2, cut_ns=1))),
    ("resumes from step 50", planted(14, event("resumed", epoch=2, resumed_from="store s50.e1.a1"))),
    ("starts from nothing", planted(14)),
    ("granted to u though j had not been released", planted(6)),
    ("operation 7 ends again", planted(12, event("aborted", "u", 1, 7), GOOD[12])),
    ("operation 7 of job u never ended", planted(10)),
    ("released only 88 s later", planted(6, event("released", op_id=7, wall=98))),
    ("revision 9 follows 7", [e for e in number(GOOD) if e["revision"] != 8]),
]


def test_a_good_history_is_good():
    assert history.check(number(GOOD)) == []


@pytest.mark.parametrize("found, events", PLANTED, ids=[text for text, _ in PLANTED])
def test_what_is_planted_in_a_history_is_found(found, events):
    assert any(found in text for text in history.check(events)), history.check(events)


def test_a_late_stop_is_excused_while_something_was_away():
    late = planted(6, event("released", op_id=7, wall=98))
    assert history.check(late, excuses=[(20, 90)]) == []
    assert history.check(late, deadlines={7: 80}) == []


def test_a_script_follows_from_its_seed_and_can_be_read_back(tmp_path):
    made = script.write(5, 120, 0.5, True, True)
    assert [str(a) for a in made] == [str(a) for a in script.write(5, 120, 0.5, True, True)]
    assert [str(a) for a in made] != [str(a) for a in script.write(6, 120, 0.5, True, True)]
    path = tmp_path / "script"
    path.write_text("".join(f"{a}\n" for a in made) + "# a remark\n")
    again = script.read(path)
    assert [str(a) for a in again] == [str(a) for a in made]
    assert {a.kind for a in made} >= {"submit", "urgent", "migrate", "kill_rank", "kill_ckptd", "link_down"}


@pytest.mark.parametrize("argv", [["soak.py", "--seed", "7", "--minutes", "0.25"], ["arrows.py", "--seed", "3", "--cases", "2"]],
                         ids=["jobs", "arrows"])
def test_a_slice_of(argv, bin_dir):
    done = subprocess.run([sys.executable, str(HERE / argv[0]), "--bin", str(bin_dir), *argv[1:]],
                          capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "it held" in done.stdout
