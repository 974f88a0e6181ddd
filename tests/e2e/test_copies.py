"""A job goes on from its newest copy or not at all; who writes a copy and stops answering is replaced."""
import os
import shutil
import signal

from cluster import alive, wait_for
from test_cluster import cluster, hold_at, let_go, submit, wait_state  # noqa: F401 (the fixture)
from test_failures import events, runs_of
from test_restarts import restart_agent


def test_a_store_that_is_away_is_never_started_from_zero(cluster, reference, tmp_path):
    want = reference(2, steps=300)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    store, away = cluster.out / "store" / "train", cluster.out / "away"

    def suspend_and_take_everything_away():
        assert cluster.run_ctl("suspend", "train", "--wait", "--durable").returncode == 0
        wait_for("its ckpt-run has left", lambda: runs_of(cluster, "train") == [], 60)
        restart_agent(cluster, "a", 2, signal.SIGTERM)  # with what it had in RAM
        os.rename(store, away)
        store.mkdir()  # a mount point whose file system is away
        done = cluster.run_ctl("resume", "train", "--wait")
        assert done.returncode == 1 and "is not started" in done.stderr, done.stdout + done.stderr
        return wait_for("it is refused", lambda: (j := cluster.job("train"))["state"] == "pending" and "is not started" in j["reason"]
                        and j, 60)

    job = suspend_and_take_everything_away()
    step = job["copies"][0]["step"]
    for part in (f"s{step}.e1.a", "Is its file system mounted? Nothing was changed there", f"step {step} (durable)", "--from-store"):
        assert part in job["reason"], job["reason"]
    assert job["restart_count"] == 0 and job["lost_steps"] == 0
    why = cluster.run_ctl("why", "train").stdout
    assert "is not started" in why and "`ckptctl resume train --from-store`" in why, why
    assert os.listdir(store) == []
    store.rmdir()
    os.rename(away, store)
    job = wait_for("it resumes by itself", lambda: (j := cluster.job("train"))["state"] == "running" and j["resumed_from"] and j, 90)
    assert f"store s{step}.e1.a" in job["resumed_from"]

    job = suspend_and_take_everything_away()
    step = job["copies"][0]["step"]
    assert cluster.run_ctl("resume", "train", "--from-store").returncode == 0
    job = wait_state(cluster, "train", "running", "finished", step=1)
    assert job["lost_steps"] == step, "what was left behind is booked"
    assert "from the beginning" in events(cluster, "train", "fell_back")[0]["message"]
    assert f"lost {step} steps" in cluster.run_ctl("job", "train").stdout
    wait_state(cluster, "train", "finished", seconds=150)
    want.check(tmp_path)
    shutil.rmtree(away)


def test_a_ckpt_run_that_is_stopped_while_it_writes_is_replaced(cluster, reference, tmp_path):
    want = reference(2, steps=120, hidden=256)
    hold_at(cluster, "engine.write.block")  # so that it still writes when it is stopped
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    assert cluster.run_ctl("suspend", "train", "--wait").returncode == 0
    writer, = [pid for _, _, pid in runs_of(cluster, "train")]
    os.kill(writer, signal.SIGSTOP)
    assert not cluster.job("train")["copies"][0]["durable"]
    let_go(cluster)
    wait_for("the copy is durable", lambda: cluster.job("train")["copies"][0]["durable"], 100)
    assert not alive(writer), "there would have been two writers"
    told, = events(cluster, "train", "run_silent")
    assert told["node"] == "a" and f"process {writer}" in told["message"] and "it is stopped" in told["message"], told
    assert events(cluster, "train", "drain_started")
    assert cluster.run_ctl("resume", "train", "--wait").returncode == 0
    wait_state(cluster, "train", "finished", seconds=120)
    want.check(tmp_path)
    assert cluster.job("train")["lost_steps"] == 0
