"""What must hold of a coordinator's history (the events of `ckptctl events -o json`), whatever was done to the cluster.

Pure: events in, sentences about what is wrong out.
"""
import re

STOPPED = {"released", "failed", "finished", "cancelled"}  # after each of these no process of the job's epoch is left, or it is killed
ENDS = {"finished", "cancelled"}                           # nothing comes after them
PHASES = ("noticed_ns", "cut_ns", "staged_ns", "comms_down_ns", "released_ns")
COPY = re.compile(r"s(\d+)\.e(\d+)\.a(\d+)")
SLACK_SECONDS = 20  # ckptd kills 5 s after a deadline; the rest is for a machine that has more to do


def check(events, deadlines=None, excuses=(), ended=True):
    """`deadlines`: seconds by operation id, where they are not the default; `excuses`: spans of boottime in seconds in which
    something needed was out of reach; `ended`: everything has come to its end, so each operation has, too."""
    problems = revisions(events) + operations(events, ended)
    jobs = {}
    for event in events:
        jobs.setdefault(event["job"], []).append(event)
    jobs.pop("", None)
    for name, mine in sorted(jobs.items()):
        for rule in (epochs_grow, ends_once, durable_once, phases_in_order, resumes_from_the_newest):
            problems += [f"job {name}: {text}" for text in rule(mine)]
        problems += [f"job {name}: {text}" for text in stops_in_time(mine, deadlines or {}, excuses)]
    return problems


def at(event):
    return f"revision {event['revision']}"


def revisions(events):
    return [f"revision {b['revision']} follows {a['revision']}" for a, b in zip(events, events[1:]) if b["revision"] != a["revision"] + 1]


def epochs_grow(events):
    newest = 0
    for event in events:
        if event["kind"] == "launched":
            if event["epoch"] <= newest:
                yield f"{at(event)}: launched as epoch {event['epoch']} after {newest}"
            newest = max(newest, event["epoch"])


def ends_once(events):
    end = None
    for event in events:
        if end is not None and event["kind"] in ENDS | {"launched", "running", "granted"}:
            yield f"{at(event)}: {event['kind']} after it was {end['kind']} at revision {end['revision']}"
        if end is None and event["kind"] in ENDS:
            end = event


def durable_once(events):
    seen = {}
    for event in events:
        if event["kind"] != "durable":
            continue
        copy = copy_of(event)
        if copy in seen:
            yield f"{at(event)}: step {copy[1]} of epoch {copy[0]} becomes durable again, after revision {seen[copy]}"
        seen[copy] = event["revision"]


def copy_of(event):
    return event["epoch"], int(event["data"]["step"]), int(event["data"]["attempt"])


def phases_in_order(events):
    for event in events:
        times = [(name, int(event["data"][name])) for name in PHASES if name in event["data"]]
        for (a, first), (b, second) in zip(times, times[1:]):
            if second < first:
                yield f"{at(event)} ({event['kind']}): {b} is before {a}"
        staged, durable = (int(event["data"].get(name, 0)) for name in ("staged_ns", "durable_ns"))
        if durable and durable < staged:
            yield f"{at(event)} ({event['kind']}): durable before it was staged"


def resumes_from_the_newest(events):
    """An acknowledged copy is never lost: no launch goes back behind the newest that was durable when it was ordered."""
    durable, wanted = (0, 0), (0, 0)
    for event in events:
        if event["kind"] == "durable":
            durable = max(durable, copy_of(event)[:2])
        elif event["kind"] == "launched":
            wanted = durable
        elif event["kind"] == "resumed":
            step, epoch, _ = map(int, COPY.search(event["data"]["resumed_from"]).groups())
            if (epoch, step) < wanted:
                yield (f"{at(event)}: epoch {event['epoch']} resumes from step {step} of epoch {epoch}; "
                       f"step {wanted[1]} of epoch {wanted[0]} was durable when it was launched")
            wanted = (0, 0)
        elif event["kind"] == "running" and wanted > (0, 0):
            yield f"{at(event)}: epoch {event['epoch']} starts from nothing; step {wanted[1]} of epoch {wanted[0]} was durable"


def operations(events, ended):
    """Each ends exactly once, and grants nothing before its victims have left."""
    problems, ends, victims = [], {}, {}
    for event in events:
        op = event["op_id"]
        if op and event["kind"] in ("done", "aborted"):
            if op in ends:
                problems.append(f"{at(event)}: operation {op} ends again, after revision {ends[op]}")
            ends[op] = event["revision"]
        elif event["kind"] == "suspending" and event["message"].startswith("to make room for"):
            victims.setdefault(op, {})[event["job"]] = event["revision"]
        elif event["kind"] == "granted":
            problems += granted_early(events, event, victims.get(op, {}))
    if ended:
        problems += [f"operation {op} of job {first_of(events, op)['job']} never ended"
                     for op in sorted({e["op_id"] for e in events} - {0} - set(ends))]
    return problems


def first_of(events, op):
    return next(e for e in events if e["op_id"] == op)


def granted_early(events, granted, victims):
    for job, asked in victims.items():
        left = any(e["job"] == job and e["kind"] in STOPPED and asked < e["revision"] < granted["revision"] for e in events)
        if not left:
            yield f"{at(granted)}: granted to {granted['job']} though {job} had not been released"


def stops_in_time(events, deadlines, excuses):
    """Released by its deadline, or a kill is booked: unless ckptd, a node or a link was away meanwhile."""
    asked = None
    for event in events:
        now = event["wall_ns"]
        if asked and event["kind"] in STOPPED | {"suspend_failed", "overdue", "unknown", "node_lost", "adopted"}:
            budget = deadlines.get(asked["op_id"], 30) + SLACK_SECONDS
            took = (now - asked["wall_ns"]) / 1e9
            away = any(start < now / 1e9 and asked["wall_ns"] / 1e9 < end for start, end in excuses)
            if event["kind"] not in ("unknown", "node_lost", "adopted") and took > budget and not away:
                yield f"{at(event)}: asked to stop at revision {asked['revision']}, {event['kind']} only {took:.0f} s later"
            asked = None
        if event["kind"] == "suspending":
            asked = event
