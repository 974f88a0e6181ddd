"""Processes of the cluster die at the worst moments; jobs come back bit for bit, and their records are right."""
import os
import re
import signal
import time

from cluster import alive, wait_for
from test_cluster import cluster, hold_at, let_go, pids_of, submit, wait_state  # noqa: F401 (the fixture)


def runs_of(cluster, job):
    """ckpt-runs of the job that live, newest epoch first: (epoch, node, pid)."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            argv = open(f"/proc/{pid}/cmdline").read().split("\0")
            env = dict(v.split("=", 1) for v in open(f"/proc/{pid}/environ").read().split("\0") if "=" in v)
            if (os.readlink(f"/proc/{pid}/exe") == str(cluster.bin / "ckpt-run") and alive(pid)
                    and env.get("CKPT_SERVER") == cluster.socket and argv[argv.index("--job") + 1] == job):
                node = os.path.basename(os.path.dirname(env["CKPT_AGENT"]))
                found.append((int(argv[argv.index("--epoch") + 1]), node, pid))
        except OSError:
            pass
    return sorted(found, reverse=True)


def nodes_of(job):
    return [n["node"] for n in job["placement"]["nodes"]]


def events(cluster, job, kind):
    return [e for e in cluster.ctl("events")["events"] if e["job"] == job and e["kind"] == kind]


def test_kill_of_the_leading_ckpt_run(cluster, reference, tmp_path):
    """Its agent ends its ranks, the gang starts again by itself from the newest copy."""
    want = reference(4, steps=600)
    for node in ("a", "b"):
        cluster.start_agent(node, 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 4, save_every=7)
    job = wait_for("a copy is there", lambda: (j := cluster.job("train"))["state"] == "running" and j["step"] >= 20
                   and j.get("copies") and j, 90)
    ranks, leader = pids_of(cluster, "train"), nodes_of(job)[0]
    assert len(ranks) == 4
    os.kill(next(pid for _, node, pid in runs_of(cluster, "train") if node == leader), signal.SIGKILL)
    wait_for("no rank of the old gang is left", lambda: not any(alive(pid) for pid in ranks), 60)
    job = wait_for("it runs again", lambda: (j := cluster.job("train"))["epoch"] > 1 and j["state"] in ("running", "finished") and j, 90)
    assert job["restart_count"] == 1 and job["resumed_from"]
    wait_state(cluster, "train", "finished", seconds=150)
    want.check(tmp_path)


def test_kill_of_a_ckpt_run_that_still_writes_what_was_suspended(cluster, reference, tmp_path):
    """What was released lives in the agent's memory: the resume comes from there."""
    want = reference(2, steps=120, hidden=768)  # large enough to be still in the writing
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    assert cluster.run_ctl("suspend", "train", "--wait").returncode == 0
    writing = [pid for _, _, pid in runs_of(cluster, "train")]
    print("still writing:", len(writing))
    for pid in writing:
        os.kill(pid, signal.SIGKILL)
    assert cluster.run_ctl("resume", "train", "--wait").returncode == 0
    job = wait_for("it says from where it came", lambda: (j := cluster.job("train"))["resumed_from"] and j["epoch"] == 2 and j, 90)
    assert job["resumed_from"].startswith("ram"), job["resumed_from"]
    wait_state(cluster, "train", "finished", seconds=120)
    want.check(tmp_path)


def test_kill_of_an_agent_while_its_job_runs(cluster, reference, tmp_path):
    """Training does not notice; the agent finds its ckpt-run again and the job loses no step."""
    want = reference(2, steps=1500)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    pids = sorted(pids_of(cluster, "train"))
    cluster.programs["agent-a"].kill()
    cluster.programs["agent-a"].wait()
    wait_state(cluster, "train", "unknown")
    assert sorted(pids_of(cluster, "train")) in (pids, [])  # [] if it has finished meanwhile
    cluster.start_agent("a", 2, "512MiB")
    job = wait_state(cluster, "train", "finished", seconds=120)
    assert job["epoch"] == 1 and job["restart_count"] == 0
    want.check(tmp_path)
    assert sum(1 for _ in open(tmp_path / "loss")) == want.steps  # none was computed twice


def test_an_agent_that_came_back_can_suspend_what_it_found(cluster, reference, tmp_path):
    want = reference(2, steps=1500)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=5)
    cluster.programs["agent-a"].kill()
    cluster.programs["agent-a"].wait()
    cluster.start_agent("a", 2, "512MiB")
    wait_state(cluster, "train", "running")
    done = cluster.run_ctl("suspend", "train", "--wait")
    assert done.returncode == 0, done.stderr
    assert pids_of(cluster, "train") == []
    done = cluster.run_ctl("resume", "train", "--wait")
    assert done.returncode == 0, done.stderr
    wait_state(cluster, "train", "finished", seconds=120)
    want.check(tmp_path)


def test_a_checkpoint_on_demand_is_durable_when_it_says_so(cluster, reference, tmp_path):
    want = reference(2, steps=600)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    before = wait_state(cluster, "train", "running", step=10)
    done = cluster.run_ctl("checkpoint", "train", "--wait")
    assert done.returncode == 0, done.stderr
    copies = [c for c in cluster.job("train")["copies"] if c["durable"]]
    assert copies and copies[0]["step"] >= before["step"]
    listed = cluster.run_ctl("verify", cluster.out / "store" / "train")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    job = wait_state(cluster, "train", "finished", seconds=120)
    assert job["epoch"] == 1
    want.check(tmp_path)


def test_half_of_a_gang_moves_there_and_back(cluster, reference, tmp_path):
    want = reference(4, steps=800)
    for node in ("a", "b", "c"):
        cluster.start_agent(node, 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 4)
    job = wait_state(cluster, "train", "running", step=10)
    leaves = nodes_of(job)[1]
    free = next(n for n in ("a", "b", "c") if n not in nodes_of(job))
    for source, to in ((leaves, free), (free, leaves)):
        epoch = cluster.job("train")["epoch"]
        done = cluster.run_ctl("migrate", "train", "--from", source, "--to", to, "--wait")
        assert done.returncode == 0, done.stderr
        job = wait_for(f"it runs on {to}", lambda: (j := cluster.job("train"))["state"] == "running" and j["epoch"] > epoch
                       and j["resumed_from"] and j["step"] > 0 and j, 90)
        assert to in nodes_of(job) and source not in nodes_of(job)
        assert job["resumed_from"].startswith("ram"), job["resumed_from"]
    wait_state(cluster, "train", "finished", seconds=150)
    want.check(tmp_path)


def test_a_job_that_crashes_by_itself_again_and_again(cluster):
    cluster.start_agent("a", 1, "512MiB")
    done = cluster.run_ctl("submit", "--name", "broken", "--ranks", 1, "--restarts-max", 2, "--", "sh", "-c", "exit 9")
    assert done.returncode == 0, done.stderr
    job = wait_state(cluster, "broken", "failed")
    assert "gave up after 2 restarts" in job["reason"] and "9" in job["reason"], job["reason"]
    assert job["epoch"] == 3
    wait_for("its last ckpt-run has exited", lambda: runs_of(cluster, "broken") == [])
    assert "broken" in cluster.run_ctl("jobs").stdout


def endless(cluster, reference, folder, name, *flags):
    """A job of one rank that does not end by itself."""
    folder.mkdir()
    command = reference.argv("train", folder)
    command[command.index("--steps") + 1] = "100000000"
    done = cluster.run_ctl("submit", "--name", name, "--ranks", 1, *flags, "--", *command)
    assert done.returncode == 0, done.stderr


def test_what_the_first_victim_freed_is_kept_until_the_last_has_left(cluster, reference, tmp_path):
    """Two victims; one is frozen for 3 s. Nobody else gets the slot of the other, though somebody waits for one."""
    small = reference(2, steps=60)
    for node in ("a", "b"):
        cluster.start_agent(node, 1, "512MiB")
    for name in ("quick", "slow"):
        endless(cluster, small, tmp_path / name, name, "--priority", 1)
        wait_state(cluster, name, "running", step=5)
    endless(cluster, small, tmp_path / "greedy", "greedy", "--priority", 50)
    folder = tmp_path / "urgent"
    folder.mkdir()
    submit(cluster, small, folder, "urgent", 2, "--priority", 100)
    plan = cluster.ctl("quote", "urgent")
    assert sorted(v["job"] for v in plan["victims"]) == ["quick", "slow"]
    frozen, = pids_of(cluster, "slow")
    os.kill(frozen, signal.SIGSTOP)
    try:
        cluster.ctl("apply", plan["id"], "--deadline", "60s")
        wait_state(cluster, "quick", "preempted")
        end = time.monotonic() + 3
        while time.monotonic() < end:
            states = {name: cluster.job(name)["state"] for name in ("slow", "urgent", "greedy")}
            assert states == {"slow": "suspending", "urgent": "pending", "greedy": "pending"}
    finally:
        os.kill(frozen, signal.SIGCONT)
    wait_state(cluster, "urgent", "finished")
    small.check(folder)
    assert events(cluster, "urgent", "granted")[0]["revision"] < min(e["revision"] for e in events(cluster, "greedy", "launched"))
    for name in ("quick", "slow", "greedy"):
        assert cluster.run_ctl("cancel", name, "--wait").returncode == 0
    assert all(cluster.job(name)["lost_gpu_seconds"] == 0 for name in ("quick", "slow"))


def test_a_store_that_refuses_is_told_while_the_copy_waits_in_ram(cluster, reference, tmp_path):
    want = reference(2, steps=120, hidden=256)
    hold_at(cluster, "engine.write.create")  # what fails before the release rolls the suspend back
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    assert cluster.run_ctl("suspend", "train", "--wait").returncode == 0
    store, away = cluster.out / "store" / "train", cluster.out / "away"
    store.rename(away)
    let_go(cluster)
    told = wait_for("it is told", lambda: events(cluster, "train", "held_up"), 60)[0]
    assert re.search(r"^node a: .*the copy stays in RAM, try \d+ of 10", told["message"]), told
    assert told["message"] in cluster.run_ctl("why", "train").stdout
    away.rename(store)
    wait_for("the copy is durable", lambda: cluster.job("train")["copies"][0]["durable"], 60)
    assert cluster.run_ctl("resume", "train", "--wait").returncode == 0
    wait_state(cluster, "train", "finished", seconds=120)
    want.check(tmp_path)


def test_a_save_asked_for_during_a_suspend_does_not_fail_it(cluster, reference, tmp_path):
    """The save is refused; the suspend is what its operation hears of."""
    want = reference(2, steps=120, hidden=256)
    hold_at(cluster, "engine.capture.copy@1")
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    operation = cluster.ctl("suspend", "train", "--deadline", "90s")["op_id"]
    writer, = [pid for _, _, pid in runs_of(cluster, "train")]
    log = cluster.out / "nodes" / "a" / "logs"
    wait_for("it stages", lambda: any(b"fault point" in path.read_bytes() for path in log.rglob("*") if path.is_file()), 60)
    os.kill(writer, signal.SIGUSR2)
    wait_for("the save is refused", lambda: any(b"save refused" in path.read_bytes() for path in log.rglob("*") if path.is_file()), 60)
    time.sleep(0.5)  # its report has come
    let_go(cluster)
    wait_state(cluster, "train", "suspended")
    assert not events(cluster, "train", "suspend_failed")
    done = cluster.ctl("operation", operation)
    assert done["state"] == "done", done
    assert cluster.run_ctl("resume", "train", "--wait").returncode == 0
    wait_state(cluster, "train", "finished", seconds=120)
    want.check(tmp_path)


def test_the_last_report_of_a_ckpt_run_takes_nothing_back(cluster, reference, tmp_path):
    """What it measures after the release comes after the report that it leaves for an agent that is away."""
    hold_at(cluster, "run.runner.memcpy")
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, reference(2, steps=300), tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    assert cluster.run_ctl("suspend", "train", "--wait").returncode == 0
    wait_for("the copy is durable", lambda: cluster.job("train")["copies"][0]["durable"])
    time.sleep(0.5)  # it is about to leave
    let_go(cluster)
    wait_for("its ckpt-run has left", lambda: not runs_of(cluster, "train"), 60)
    wait_for("its end is known", lambda: cluster.job("train")["last_stop"]["memcpy_ratio"] > 0, 60)
    time.sleep(1)
    assert cluster.job("train")["last_stop"]["memcpy_ratio"] > 0
    cluster.ctl("cancel", "train")


def test_an_end_is_not_explained_by_a_suspend_that_failed_before(cluster, reference, tmp_path):
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, reference(2, steps=5000), tmp_path, "train", 2, "--restarts-max", 0)
    wait_state(cluster, "train", "running", step=10)
    frozen, other = pids_of(cluster, "train")
    os.kill(frozen, signal.SIGSTOP)
    failed = cluster.run_ctl("suspend", "train", "--deadline", "2s", "--wait")
    os.kill(frozen, signal.SIGCONT)
    assert failed.returncode == 1 and "runs on" in failed.stderr, failed.stderr
    wait_state(cluster, "train", "running")
    os.kill(other, signal.SIGKILL)
    reason = wait_state(cluster, "train", "failed")["reason"]
    assert "SIGKILL" in reason and "barrier" not in reason and "in time" not in reason, reason
