"""Stops that are taken back, in time and too late; and a preemption of three jobs, of which one does not stop at first."""
import os
import re
import signal
import time

from cluster import wait_for
from test_cluster import cluster, pids_of, submit, wait_state  # noqa: F401 (the fixture)
from test_failures import endless, events, runs_of

LINGERS = 4  # seconds that a rank takes to leave


def signal_all(pids, number):
    for pid in pids:
        os.kill(pid, number)


def test_a_suspend_is_withdrawn_before_the_cut(cluster, reference, tmp_path):
    want = reference(2, steps=300)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    frozen = pids_of(cluster, "train")[:1]
    signal_all(frozen, signal.SIGSTOP)  # no common boundary as long as it is
    try:
        number = cluster.ctl("suspend", "train", "--deadline", "90s")["op_id"]
        wait_state(cluster, "train", "suspending")
        done = cluster.run_ctl("withdraw", number)
        assert done.returncode == 0 and "withdrawn" in done.stdout, done.stdout + done.stderr
    finally:
        signal_all(frozen, signal.SIGCONT)
    job = wait_state(cluster, "train", "finished", seconds=120)
    assert job["epoch"] == 1 and job["lost_steps"] == 0 and job["lost_gpu_seconds"] == 0 and not events(cluster, "train", "released")
    want.check(tmp_path)
    assert sum(1 for _ in open(tmp_path / "loss")) == want.steps, "a step was computed twice"


def with_a_second_notice(cluster, reference, folder, deadline):
    """An operator's suspend with this deadline, then a SIGTERM that gives 30 s, and a rank that is not at a boundary."""
    want = reference(2, steps=300)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, folder, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    frozen = pids_of(cluster, "train")[:1]
    signal_all(frozen, signal.SIGSTOP)
    number = cluster.ctl("suspend", "train", "--deadline", deadline)["op_id"]
    wait_state(cluster, "train", "suspending")
    (_, _, run), = runs_of(cluster, "train")
    os.kill(run, signal.SIGTERM)
    log = cluster.out / "nodes" / "a" / "logs"
    wait_for("it is heard", lambda: any(b"notice: SIGTERM" in path.read_bytes() for path in log.rglob("*") if path.is_file()), 60)
    return want, frozen, number


def stops_for_the_other(cluster, want, folder, frozen):
    signal_all(frozen, signal.SIGCONT)
    wait_state(cluster, "train", "suspended")
    assert not events(cluster, "train", "overdue"), "nobody has to kill it"
    assert cluster.job("train")["lost_steps"] == 0
    assert cluster.run_ctl("resume", "train", "--wait").returncode == 0
    wait_state(cluster, "train", "finished", seconds=120)
    want.check(folder)


def test_a_deadline_that_passes_ends_only_its_own_notice(cluster, reference, tmp_path):
    want, frozen, number = with_a_second_notice(cluster, reference, tmp_path, "4s")
    try:
        told = wait_for("the suspend is given up", lambda: (done := cluster.run_ctl("operation", number)).returncode == 1 and done, 60)
        assert "the gang still stops for another notice" in told.stderr
        time.sleep(6)  # longer than ckptd waits for a stop that is overdue
    finally:
        stops_for_the_other(cluster, want, tmp_path, frozen)


def test_a_suspend_is_withdrawn_while_another_notice_stands(cluster, reference, tmp_path):
    want, frozen, number = with_a_second_notice(cluster, reference, tmp_path, "8s")
    try:
        assert cluster.run_ctl("withdraw", number).returncode == 0
        wait_for("it is taken back", lambda: events(cluster, "train", "suspend_failed"), 60)
        time.sleep(10)  # past its deadline
    finally:
        stops_for_the_other(cluster, want, tmp_path, frozen)


def lingering(reference, folder):
    """The trainer in a shell that takes its time to leave."""
    return ["sh", "-c", f'"$@"; code=$?; sleep {LINGERS}; exit $code', "sh", *reference.argv("train", folder)]


def test_a_suspend_is_withdrawn_when_it_is_too_late(cluster, reference, tmp_path):
    """Its ranks are leaving: the copy is kept and it goes on from that, without anybody asking."""
    want = reference(2, steps=300)
    cluster.start_agent("a", 2, "512MiB")
    done = cluster.run_ctl("submit", "--name", "train", "--ranks", 2, "--", *lingering(want, tmp_path))
    assert done.returncode == 0, done.stderr
    wait_state(cluster, "train", "running", step=10)
    number = cluster.ctl("suspend", "train", "--deadline", "90s")["op_id"]
    wait_for("all have staged", lambda: cluster.try_ctl("operation", number)["phase"] == "STAGED", 60)
    wait_for("its trainers have left", lambda: not [p for p in pids_of(cluster, "train")
                                                    if os.path.basename(os.readlink(f"/proc/{p}/exe")) == "train"], 60)
    done = cluster.run_ctl("withdraw", number)
    assert done.returncode == 0 and "launched again in its place" in done.stdout, done.stdout + done.stderr
    job = wait_for("it goes on", lambda: (j := cluster.job("train"))["epoch"] == 2 and j["resumed_from"] and j, 90)
    assert job["resumed_from"].startswith("ram"), job["resumed_from"]
    job = wait_state(cluster, "train", "finished", seconds=120)
    assert job["lost_steps"] == 0 and job["lost_gpu_seconds"] == 0 and job["restart_count"] == 0
    want.check(tmp_path)
    assert sum(1 for _ in open(tmp_path / "loss")) == want.steps, "a step was computed twice"


def test_three_victims_one_of_them_frozen_withdrawn_and_then_carried_out(cluster, reference, tmp_path):
    small = reference(3, steps=60)
    victims = ("x", "y", "z")
    for node in ("a", "b", "c"):
        cluster.start_agent(node, 1, "512MiB")
    for name in victims:
        endless(cluster, small, tmp_path / name, name, "--priority", 1)
    for name in victims:
        wait_state(cluster, name, "running", step=5)
    (tmp_path / "urgent").mkdir()
    submit(cluster, small, tmp_path / "urgent", "urgent", 3, "--priority", 100)

    def begin():
        plan = cluster.ctl("quote", "urgent")
        assert sorted(v["job"] for v in plan["victims"]) == list(victims)
        signal_all(frozen, signal.SIGSTOP)
        return cluster.ctl("apply", plan["id"], "--deadline", "90s")["op_id"]

    frozen = pids_of(cluster, "z")
    try:
        number = begin()
        for name in ("x", "y"):
            wait_state(cluster, name, "preempted")
        assert cluster.job("z")["state"] == "suspending" and cluster.job("urgent")["state"] == "pending"
        assert cluster.run_ctl("withdraw", number).returncode == 0
    finally:
        signal_all(frozen, signal.SIGCONT)
    for name, epoch in (("x", 2), ("y", 2), ("z", 1)):
        before = wait_state(cluster, name, "running")
        job = wait_state(cluster, name, "running", step=before["step"] + 5)
        assert job["epoch"] == epoch and job["lost_steps"] == 0, job
        assert epoch == 1 or job["resumed_from"].startswith("ram"), job
    assert cluster.job("urgent")["state"] == "pending" and not events(cluster, "urgent", "granted")

    frozen = pids_of(cluster, "z")
    try:
        begin()
        for name in ("x", "y"):
            wait_state(cluster, name, "preempted")
        assert not events(cluster, "urgent", "granted"), "one of the three is still there"
    finally:
        signal_all(frozen, signal.SIGCONT)
    wait_state(cluster, "urgent", "finished")
    small.check(tmp_path / "urgent")
    assert len(events(cluster, "urgent", "granted")) == 1
    for name in victims:
        job = wait_for(f"{name} is back", lambda: (j := cluster.job(name))["state"] == "running" and j["resumed_from"] and j, 90)
        assert job["lost_steps"] == 0 and job["restart_count"] == 0 and job["resumed_from"].startswith("ram"), job
        assert cluster.run_ctl("cancel", name, "--wait").returncode == 0


def test_a_rank_that_does_not_come_to_the_cut_is_named(cluster, reference, tmp_path):
    want = reference(2, steps=300)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    rank = {int(open(f"/proc/{pid}/environ").read().split("\0RANK=")[1].split("\0")[0]): pid for pid in pids_of(cluster, "train")}
    os.kill(rank[1], signal.SIGSTOP)
    try:
        done = cluster.run_ctl("suspend", "train", "--deadline", "3s", "--wait")
    finally:
        os.kill(rank[1], signal.SIGCONT)
    # Rank 0 may wait for it in a collective, and is missing as well.
    assert done.returncode == 1 and re.search("barrier 1; missing: rank (0, )?1 at boundary", done.stderr), done.stdout + done.stderr
    assert "barrier 1; missing: rank" in cluster.run_ctl("why", "train").stdout
    job = wait_state(cluster, "train", "finished", seconds=120)
    assert job["epoch"] == 1 and job["lost_steps"] == 0
    want.check(tmp_path)
