"""What is done to a cluster, and when: a list of actions that follows from a seed, can be read, and can be played again.

An action names its kind and numbers; which job, rank or node it hits is left open (`pick`) until it is due, because that
depends on what runs then. What was really hit is written down in the same form, so that a log is a script:

      12.40 kill_rank job=j03 rank=2
      15.02 link_down node=b for=3.5
"""
import random

DO = {  # kind: how often, relative to the others
    "submit": 14, "urgent": 8, "suspend": 8, "resume": 10, "migrate": 8, "checkpoint": 5, "cancel": 1,
}
BREAK = {
    "kill_rank": 4, "stop_rank": 3, "term_rank": 2, "kill_run": 3, "stop_run": 3, "kill_agent": 3, "restart_agent": 3,
    "stop_agent": 2, "kill_ckptd": 3, "restart_ckptd": 2, "stop_ckptd": 2, "garbage": 2,
}
NEEDS_NAMESPACES = {"link_down": 4}
NEEDS_SMALL_STORE = {"fill_store": 2}
LASTS = {"stop_rank", "stop_run", "stop_agent", "stop_ckptd", "link_down", "fill_store", "kill_agent", "restart_agent", "kill_ckptd",
         "restart_ckptd"}
SHAPES = [(ranks, steps) for ranks in (1, 2, 3, 4) for steps in (150, 400)]


class Action:
    def __init__(self, at, kind, **fields):
        self.at, self.kind, self.fields = at, kind, fields

    def get(self, name, default=None):
        return self.fields.get(name, default)

    def __str__(self):
        return f"{self.at:8.2f} {self.kind}" + "".join(f" {name}={value}" for name, value in self.fields.items() if name != "pick")

    @classmethod
    def parse(cls, line):
        at, kind, *fields = line.split()
        return cls(float(at), kind, **{name: number(value) for name, value in (field.split("=", 1) for field in fields)})


def number(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def read(path):
    """The actions of a log; what was found impossible (`# …`) is left out."""
    with open(path) as file:
        return [Action.parse(line) for line in file if line.strip() and not line.startswith("#")]


def duration(rng):
    """Mostly shorter than any time-out, sometimes longer than that after which a node is given up."""
    return round(rng.choice([rng.uniform(0.1, 1), rng.uniform(0.2, 3), rng.uniform(1, 6), rng.uniform(9, 18)]), 1)


def job_fields(rng, number_of_job, urgent):
    ranks, steps = rng.choice(SHAPES)
    return {"job": f"{'u' if urgent else 'j'}{number_of_job:03}", "ranks": min(ranks, 2) if urgent else ranks,
            "steps": 80 if urgent else steps, "seed": 1 + (ranks == 2), "save_every": rng.choice([0, 20, 60]),
            "priority": rng.randint(50, 99) if urgent else rng.randint(0, 20)}


def write(seed, seconds, gap, can_partition, small_store):
    """All actions of a soak. `gap`: seconds between two, on average."""
    rng = random.Random(f"{seed} {can_partition} {small_store}")
    weights = dict(DO) | BREAK | (NEEDS_NAMESPACES if can_partition else {}) | (NEEDS_SMALL_STORE if small_store else {})
    actions, jobs = [], 0
    at = 0.0
    while at < seconds:
        kind = "submit" if jobs < 3 else rng.choices(list(weights), weights.values())[0]
        fields = {"pick": rng.random()}
        if kind in ("submit", "urgent"):
            jobs += 1
            fields = job_fields(rng, jobs, kind == "urgent")
        if kind in LASTS:
            fields["for"] = duration(rng)
        if kind in ("suspend", "resume", "migrate", "checkpoint"):
            fields["wait"] = int(rng.random() < 0.5)
        if kind in ("suspend", "migrate") and rng.random() < 0.3:
            fields["deadline"] = rng.choice([1, 5, 15])
        if kind == "garbage":
            fields["noise"] = rng.randint(0, 1 << 30)
        actions.append(Action(round(at, 2), kind, **fields))
        at += rng.expovariate(1 / gap) if jobs >= 3 else 0.1
    return actions
