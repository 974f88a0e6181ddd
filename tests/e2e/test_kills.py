"""ckptd dies at a record of an operation and is started again: the operation ends as if nothing had happened.

Who got no answer asks again. Some records by default, every one with CKPT_KILLS=all."""
import os

import pytest
from cluster import wait_for
from test_cluster import cluster, submit, wait_state  # noqa: F401 (the fixture)
from test_failures import events, nodes_of

SOME = {"suspend": [("after", 2)], "resume": [("before", 2)], "checkpoint": [("after", 1)], "migrate": [("after", 3)],
        "preemption": [("before", 3)]}
RECORDS_MAX = 8  # more than any operation stores


def cases():
    for verb, some in SOME.items():
        every = [(side, nth) for side in ("before", "after") for nth in range(1, RECORDS_MAX + 1)]
        for side, nth in every if os.environ.get("CKPT_KILLS") == "all" else some:
            yield pytest.param(verb, side, nth, (side, nth) in some, id=f"{verb}-{side}-{nth}")


def restart_ckptd(cluster, nodes, fault=None):
    ckptd = cluster.programs["ckptd"]
    if ckptd.poll() is None:
        ckptd.terminate()
    ckptd.wait(30)
    if fault:
        cluster.env["CKPT_FAULT_AT"] = fault
    cluster.start_ckptd()
    cluster.env.pop("CKPT_FAULT_AT", None)
    wait_for("its nodes are back", lambda: sum(bool(n.get("connected")) for n in cluster.nodes()) == nodes, 60)


@pytest.mark.parametrize("verb, side, nth, must_fire", cases())
def test_ckptd_dies_at_a_record(cluster, reference, tmp_path, verb, side, nth, must_fire):
    want, small = reference(2, steps=500), reference(1, steps=40)
    names = ("a", "b", "c") if verb == "migrate" else ("a", "b")
    for node in names:
        cluster.start_agent(node, 1, "512MiB")
    submit(cluster, want, tmp_path, "train", 2, "--priority", 1)
    wait_state(cluster, "train", "running", step=10)
    if verb == "resume":
        assert cluster.run_ctl("suspend", "train", "--wait").returncode == 0
        # When it became durable is a record of the suspend: only those of the resume are to be counted.
        wait_for("it is durable", lambda: cluster.job("train")["copies"][0]["durable"], 60)
    elif verb == "preemption":
        (tmp_path / "urgent").mkdir()
        submit(cluster, small, tmp_path / "urgent", "urgent", 1, "--priority", 100)
    before = cluster.job("train")
    restart_ckptd(cluster, len(names), f"ckptd.operation.{side}_commit:{nth}=kill")

    free = next((n for n in names if n not in nodes_of(before)), None)

    def ask():
        if verb == "preemption":
            plan = cluster.try_ctl("quote", "urgent")
            return plan and cluster.run_ctl("apply", plan["id"])
        argv = ["train"] if verb != "migrate" else ["train", "--from", nodes_of(before)[1], "--to", free]
        return cluster.run_ctl(verb, *argv)

    def done():
        job = cluster.try_ctl("job", "train")
        if job is None:  # ckptd is gone
            return False
        if verb == "suspend":
            return job["state"] == "suspended"
        if verb == "checkpoint":
            return any(c["durable"] and c["step"] >= before["step"] for c in job.get("copies", []))
        if verb == "preemption":
            return (cluster.try_ctl("job", "urgent") or {}).get("state") == "finished"
        return job["epoch"] == before["epoch"] + 1 and (job["step"] > before["step"] or job["state"] == "finished")

    wait_state(cluster, "train", "suspended" if verb == "resume" else "running")
    asked = ask()
    ckptd = cluster.programs["ckptd"]
    fired = []

    def over():
        if not fired and ckptd.poll() is not None:
            fired.append(ckptd.poll())
            restart_ckptd(cluster, len(names))
            if not asked or asked.returncode != 0:
                ask()
            else:
                assert side != "before" or nth != 1, "it was acknowledged and was not on record"
        return done()

    wait_for(f"the {verb} is done", over, 150)
    if not fired:
        fired += filter(None, [ckptd.poll()])
        restart_ckptd(cluster, len(names))  # the records that come now are no longer of it
    assert fired == [-9] or not must_fire, f"{verb} stores fewer than {nth} records"
    if verb == "suspend":
        assert cluster.run_ctl("resume", "train", "--wait").returncode == 0
    wait_state(cluster, "train", "finished", seconds=150)
    want.check(tmp_path)
    job = cluster.job("train")
    assert job["restart_count"] == 0 and job["lost_gpu_seconds"] == 0, job
    assert job["epoch"] == (1 if verb == "checkpoint" else 2), "it was carried out twice"
    if verb == "preemption":
        small.check(tmp_path / "urgent")
        assert job["preempted_count"] == 1 and len(events(cluster, "urgent", "granted")) == 1
