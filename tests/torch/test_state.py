"""What is tracked, part by part: what comes back is what was there, bit for bit, in the objects that were given."""

import collections
import logging
import os
import random
import resource
import signal
import struct
import subprocess
import sys

import numpy
import pytest
import torch
from torch import nn

import libckpt.torch as ckpt
from libckpt.torch import _tensors



@pytest.fixture(autouse=True)
def close_what_a_failed_test_left(monkeypatch):
    runs = []
    true_open = ckpt.open

    def recording(*args, **keywords):
        runs.append(true_open(*args, **keywords))
        return runs[-1]

    monkeypatch.setattr(ckpt, "open", recording)
    yield
    for run in runs:
        run.close(0.0)


EVERY_OPTIMIZER = {
    "SGD": dict(lr=0.1), "SGD momentum": dict(lr=0.1, momentum=0.9, dampening=0.1), "Adam": dict(lr=0.01),
    "Adam amsgrad": dict(lr=0.01, amsgrad=True), "AdamW": dict(lr=0.01), "Adagrad": dict(lr=0.01), "Adadelta": {},
    "Adamax": {}, "ASGD": {}, "NAdam": {}, "RAdam": {}, "RMSprop": dict(momentum=0.5, centered=True), "Rprop": {},
    "LBFGS": dict(history_size=3), "Adafactor": {}, "AdamW tensor": dict(lr=torch.tensor(0.01)),
}


def net(seed=1):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model[2].bias.requires_grad_(False)
    return model


def train(model, optimizer, steps, scheduler=None):
    losses = []
    for _ in range(steps):
        x = torch.randn(4, 6)

        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item().hex())
        if scheduler is not None:
            scheduler.step()
    return losses


def bits(value):
    """A picture of a state in which equal means equal in every bit and type."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().reshape(-1)
        return ("tensor", str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes() if len(flat) else b"")
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return (type(value), value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, dict):
        return (type(value), [(k, bits(v)) for k, v in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [bits(v) for v in value])
    return (type(value), struct.pack(">d", value) if isinstance(value, float) else value)


def optimizer_for(spec, model):
    make = getattr(torch.optim, spec.split()[0])
    return make([p for p in model.parameters() if p.requires_grad], **EVERY_OPTIMIZER[spec])


@pytest.mark.parametrize("spec", [s for s in EVERY_OPTIMIZER if hasattr(torch.optim, s.split()[0])])
def test_optimizers(tmp_path, spec):
    model = net()
    optimizer = optimizer_for(spec, model)
    run = ckpt.open(tmp_path, model=model, optim=optimizer)
    train(model, optimizer, 3)
    run.step()
    run.save(wait=True)
    at_save = bits(optimizer.state_dict())
    rng = torch.get_rng_state()
    going_on = train(model, optimizer, 4)
    run.close()

    model2 = net(seed=2)
    optimizer2 = optimizer_for(spec, model2)
    run2 = ckpt.open(tmp_path, model=model2, optim=optimizer2)
    assert run2.resumed_from == 1 and run2.global_step == 1
    assert bits(optimizer2.state_dict()) == at_save
    assert torch.equal(torch.get_rng_state(), rng)
    assert train(model2, optimizer2, 4) == going_on
    assert bits(model2.state_dict()) == bits(model.state_dict())
    run2.close()


SCHEDULERS = {
    "StepLR": lambda o, s: s.StepLR(o, 2), "MultiStepLR": lambda o, s: s.MultiStepLR(o, [1, 3, 3]),
    "LambdaLR": lambda o, s: s.LambdaLR(o, lambda n: 0.9**n), "Cosine": lambda o, s: s.CosineAnnealingLR(o, 10),
    "Warm": lambda o, s: s.CosineAnnealingWarmRestarts(o, 3), "OneCycle": lambda o, s: s.OneCycleLR(o, 0.1, total_steps=20),
    "Cyclic": lambda o, s: s.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
    "Sequential": lambda o, s: s.SequentialLR(o, [s.LinearLR(o, 0.1, 1.0, 2), s.ExponentialLR(o, 0.8)], [2]),
    "Chained": lambda o, s: s.ChainedScheduler([s.ConstantLR(o, 0.5, 2), s.PolynomialLR(o, 9)]),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(tmp_path, name):
    def make(seed):
        model = net(seed)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
        return model, optimizer, SCHEDULERS[name](optimizer, torch.optim.lr_scheduler)

    model, optimizer, scheduler = make(1)
    run = ckpt.open(tmp_path, model=model, optim=optimizer, scheduler=scheduler)
    train(model, optimizer, 3, scheduler)
    run.save(wait=True)
    at_save = bits({k: v for k, v in scheduler.state_dict().items() if k != "_schedulers"})
    going_on = train(model, optimizer, 4, scheduler), scheduler.get_last_lr()
    run.close()
    model2, optimizer2, scheduler2 = make(2)
    ckpt.open(tmp_path, model=model2, optim=optimizer2, scheduler=scheduler2).close()
    assert bits({k: v for k, v in scheduler2.state_dict().items() if k != "_schedulers"}) == at_save
    assert (train(model2, optimizer2, 4, scheduler2), scheduler2.get_last_lr()) == going_on


def test_plateau_scaler_and_ema(tmp_path):
    def make(seed):
        model = net(seed)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        return dict(model=model, optim=optimizer, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
                    scaler=torch.amp.GradScaler("cpu"), ema=torch.optim.swa_utils.AveragedModel(model))

    one = make(1)
    run = ckpt.open(tmp_path, **one)
    train(one["model"], one["optim"], 2)
    one["scheduler"].step(1.0), one["scheduler"].step(2.0)
    one["ema"].update_parameters(one["model"])
    one["scaler"]._growth_tracker = torch.tensor(3, dtype=torch.int32)
    run.save(wait=True)
    run.close()
    two = make(2)
    ckpt.open(tmp_path, **two).close()
    for key in one:
        assert bits(two[key].state_dict()) == bits(one[key].state_dict()), key


def state_of_all_kinds():
    return {
        "epoch": 3, "best": float("inf"), "zero": -0.0, "big": 1 << 90, "name": "gpt", "raw": b"\x00\xff", "none": None,
        "list": [1, (2, 3.5, ())], 7: {"nested": {}}, "small": torch.arange(5, dtype=torch.int16),
        "large": torch.randn(3000), "bf16": torch.randn(2500).bfloat16(), "view": torch.randn(70, 60).t(),
        "array": numpy.arange(2000, dtype=numpy.int32), "tiny": numpy.float32(1.5), "flags": numpy.array([True, False]),
        "scalar": torch.tensor(2.0, dtype=torch.float64), "empty": torch.empty(0, 3), "in": [torch.ones(2000), "x"],
    }


def test_extra_comes_back_in_place(tmp_path):
    state = state_of_all_kinds()
    expected = bits(state)
    run = ckpt.open(tmp_path, extra=state)
    run.save(wait=True)
    run.close()
    other = {"epoch": 0, "large": torch.zeros(3000), "small": torch.zeros(5, dtype=torch.int16), "array": state["array"] * 0,
             "gone": 1}
    large, small, array = other["large"], other["small"], other["array"]
    ckpt.open(tmp_path, extra=other).close()
    assert bits(other) == expected
    assert other["large"] is large and other["small"] is small and other["array"] is array


def test_changed_right_after_step(tmp_path):
    t = torch.arange(100_000, dtype=torch.float32)
    state = {"t": t, "n": 1}
    before = t.clone()
    run = ckpt.open(tmp_path, extra=state, save_every=1)
    run.step()
    t += 1
    state["n"] += 1
    run.close()
    t.zero_()
    run = ckpt.open(tmp_path, extra=state)
    assert torch.equal(t, before) and state == {"t": t, "n": 1}
    assert state["t"] is t
    run.close()


class Thing:
    pass


@pytest.mark.parametrize("extra,where", [
    ({"a": [0, 1, 2, Thing()]}, "extra['a'][3]"),
    ({"f": print}, "extra['f']"),
    ({"s": torch.ones(3).to_sparse()}, "extra['s']"),
    ({"o": numpy.array([Thing()], dtype=object)}, "extra['o']"),
    ({"m": torch.ones(2000, device="meta")}, "extra['m']"),
    ({"d": collections.OrderedDict(a=1)}, "extra['d']"),
])
def test_refused_by_name_at_save(tmp_path, extra, where):
    state = {"fine": 1}
    run = ckpt.open(tmp_path, extra=state, save_every=1)
    run.step()
    state.update(extra)
    with pytest.raises(ckpt.NotExpressible) as caught:
        run.step()
    assert where in str(caught.value) and "cannot be saved" in str(caught.value)
    for key in extra:
        del state[key]
    run.step()  # training goes on
    assert run.save(wait=True).durable
    run.close()


def test_refused_at_open(tmp_path):
    model = net()
    with pytest.raises(ckpt.NotExpressible, match="extra"):
        ckpt.open(tmp_path, extra=Thing())
    with pytest.raises(ckpt.NotExpressible, match="model"):
        ckpt.open(tmp_path, model=[model])
    with pytest.raises(ckpt.Error, match=r"param_groups\[0\]\['params'\]\[0\]"):
        ckpt.open(tmp_path, model=net(2), optim=torch.optim.SGD(model.parameters(), lr=1))


def test_another_model_or_optimizer_is_refused_whole(tmp_path):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    run = ckpt.open(tmp_path, model=model, optim=optimizer)
    train(model, optimizer, 1)
    run.save(wait=True)
    run.close()
    wider = nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3))
    before = bits(wider.state_dict())
    with pytest.raises(ckpt.Error) as caught:
        ckpt.open(tmp_path, model=wider, optim=torch.optim.Adam(wider.parameters()))
    assert caught.value.code == "INVALID_ARGUMENT" and "0.weight" in str(caught.value)
    assert bits(wider.state_dict()) == before
    with pytest.raises(ckpt.Error, match="Adam with 1 .* SGD"):
        ckpt.open(tmp_path, model=model, optim=torch.optim.SGD(model.parameters(), lr=1))
    with pytest.raises(ckpt.Error, match="also holds optim"):
        ckpt.open(tmp_path, model=model)


def test_tied_frozen_and_nonpersistent(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(40, 30)
            self.head = nn.Linear(30, 40, bias=False)
            self.head.weight = self.embed.weight
            self.frozen = nn.Linear(50, 50).requires_grad_(False)
            self.register_buffer("kept", torch.randn(9))
            self.register_buffer("made", torch.randn(9), persistent=False)
            self.counts = 0

        def get_extra_state(self):
            return {"counts": self.counts}

        def set_extra_state(self, state):
            self.counts = state["counts"]

    one, two = Tied(), Tied()
    one.counts = 5
    run = ckpt.open(tmp_path, model=one)
    run.save(wait=True)
    stored = sum(f.stat().st_size for f in tmp_path.rglob("shard-*.safetensors"))
    assert stored < (40 * 30 + 50 * 51 + 9) * 4 + 8192  # the tied weight is there once
    made = two.made.clone()
    run.close()
    ckpt.open(tmp_path, model=two).close()
    assert bits(two.state_dict()) == bits(one.state_dict()) and two.counts == 5
    assert two.head.weight is two.embed.weight and torch.equal(two.made, made)


def test_several_by_name(tmp_path):
    def make(seed):
        models = {"gen": net(seed), "dis": net(seed + 1)}
        optims = {n: torch.optim.Adam([p for p in m.parameters() if p.requires_grad]) for n, m in models.items()}
        return models, optims

    models, optims = make(1)
    for name in models:
        train(models[name], optims[name], 2)
    run = ckpt.open(tmp_path, model=models, optim=optims)
    run.save(wait=True)
    run.close()
    models2, optims2 = make(5)
    ckpt.open(tmp_path, model=models2, optim=optims2).close()
    for name in models:
        assert bits(models2[name].state_dict()) == bits(models[name].state_dict())
        assert bits(optims2[name].state_dict()) == bits(optims[name].state_dict())


def test_optimizer_state_that_comes_late(tmp_path):
    """A parameter gets its first gradient after saves were made: the next save has its state."""
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "late": nn.Linear(3, 3)})
    optimizer = torch.optim.Adam(model.parameters())
    run = ckpt.open(tmp_path, model=model, optim=optimizer)
    for step in range(4):
        optimizer.zero_grad()
        loss = model["a"](torch.ones(3)).sum() + (model["late"](torch.ones(3)).sum() if step > 1 else 0)
        loss.backward()
        optimizer.step()
        run.step(loss=loss)
        run.save(wait=True)
    run.close()
    assert all(s["level"] == "durable" for s in run.history())
    other = nn.ModuleDict({"a": nn.Linear(3, 3), "late": nn.Linear(3, 3)})
    for steps, expected in ((2, 2), (4, 4)):
        fresh = torch.optim.Adam(other.parameters())
        ckpt.open(tmp_path, model=other, optim=fresh, resume=f"step:{steps}").close()
        assert len(fresh.state) == expected


def test_tensors_that_were_replaced(tmp_path):
    """An optimizer state or parameter with new memory is found where it is now."""
    model = net()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    run = ckpt.open(tmp_path, model=model, optim=optimizer)
    train(model, optimizer, 1)
    run.save(wait=True)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone() + 1
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, 1)
    run.step()
    run.save(wait=True)
    expected = bits(model.state_dict()), bits(optimizer.state_dict())
    run.close()
    model2 = net(2)
    optimizer2 = torch.optim.Adam([p for p in model2.parameters() if p.requires_grad])
    ckpt.open(tmp_path, model=model2, optim=optimizer2).close()
    assert (bits(model2.state_dict()), bits(optimizer2.state_dict())) == expected


def test_thousands_of_tensors_and_memory_stays_flat(tmp_path):
    model = nn.ModuleList(nn.Linear(16, 16) for _ in range(600))
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    x = torch.ones(16)
    run = ckpt.open(tmp_path, model=model, optim=optimizer)
    sum(layer(x).sum() for layer in model).backward()
    optimizer.step()

    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()

    sizes = []
    for _ in range(30):
        run.step()
        run.save(wait=True)
        sizes.append(resident())
    assert sizes[-1] < sizes[9] * 1.05, sizes
    assert run.history()[-1]["bytes"] == 1200 * 4 + 600 * 3 * (16 * 17) * 4
    run.close()
    model2 = nn.ModuleList(nn.Linear(16, 16) for _ in range(600))
    optimizer2 = torch.optim.Adam(model2.parameters())
    ckpt.open(tmp_path, model=model2, optim=optimizer2).close()
    assert bits(model2.state_dict()) == bits(model.state_dict())
    assert bits(optimizer2.state_dict()["state"]) == bits(optimizer.state_dict()["state"])


def test_memory_elsewhere_goes_through_mirrors(tmp_path, monkeypatch):
    """The path of tensors on a device, taken with tensors of the host."""
    monkeypatch.setattr(_tensors, "needs_mirror", lambda local: True)
    model = net()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    run = ckpt.open(tmp_path, model=model, optim=optimizer)
    for _ in range(3):
        train(model, optimizer, 1)
        run.step()
        run.save(wait=True)
    expected = bits(model.state_dict()), bits(optimizer.state_dict())
    run.close()
    train(model, optimizer, 1)
    model2 = net(2)
    optimizer2 = torch.optim.Adam([p for p in model2.parameters() if p.requires_grad])
    ckpt.open(tmp_path, model=model2, optim=optimizer2).close()
    assert (bits(model2.state_dict()), bits(optimizer2.state_dict())) == expected


def test_wrappers_are_seen_through(tmp_path):
    model = net()
    run = ckpt.open(tmp_path, model=torch.compile(model))
    run.save(wait=True)
    run.close()
    other = net(2)
    ckpt.open(tmp_path, model=other).close()
    assert bits(other.state_dict()) == bits(model.state_dict())


def test_random_states(tmp_path):
    run = ckpt.open(tmp_path, extra={})
    random.seed(5), numpy.random.seed(5), torch.manual_seed(5)
    random.gauss(0, 1), numpy.random.randn()
    run.save(wait=True)

    def draw():
        return random.random(), random.gauss(0, 1), numpy.random.randn(), torch.rand(3).tolist()

    expected = draw()
    run.close()
    draw()
    ckpt.open(tmp_path, extra={}).close()
    assert draw() == expected


# ---- the store ------------------------------------------------------------------------------------------------------


def test_damaged_newest_falls_back_loudly(tmp_path, caplog):
    state = {"t": torch.zeros(50_000), "n": 0}
    run = ckpt.open(tmp_path, extra=state)
    for n in (1, 2):
        state["t"] += 1
        state["n"] = n
        run.step()
        run.save(wait=True)
    run.close()
    shard = next(tmp_path.glob("s2.*/shard-00000.safetensors"))
    with open(shard, "r+b") as file:
        file.seek(150_000)
        file.write(b"\x55")
    with caplog.at_level(logging.ERROR, logger="libckpt"):
        run = ckpt.open(tmp_path, extra=state)
    assert run.resumed_from == 1 and state["n"] == 1 and torch.equal(state["t"], torch.ones(50_000))
    assert "damaged" in caplog.text and "older" in caplog.text
    run.close()
    shard = next(tmp_path.glob("s1.*/shard-00000.safetensors"))
    os.truncate(shard, 1000)
    with pytest.raises(ckpt.Error) as caught:
        ckpt.open(tmp_path, extra=state)
    assert caught.value.code == "DATA_LOSS"


def test_full_disk_does_not_stop_the_training(tmp_path, caplog):
    state = {"t": torch.randn(200_000)}
    run = ckpt.open(tmp_path, extra=state, save_every=1)
    run.step()
    run.wait()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        run.step()
        with pytest.raises(ckpt.Error):
            run.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with caplog.at_level(logging.ERROR, logger="libckpt"):
        run.step()
    assert "training goes on" in caplog.text
    run.step()
    run.wait()
    assert [s["level"] for s in run.history()][-1] == "durable"
    assert run.checkpoints()[0]["step"] == 4
    run.close()


def test_history_and_metrics(tmp_path):
    run = ckpt.open(tmp_path, extra={"t": torch.ones(1 << 16)}, save_every=2)
    for step in range(1, 6):
        run.step(loss=torch.tensor(step / 2), lr=0.1)
    save = run.save(wait=True)
    assert save.durable and save.progress()["level"] == "durable" and save.bytes == 4 << 16
    history = run.history()
    assert [s["step"] for s in history] == [2, 4, 5]
    assert all(s["stall_seconds"] > 0 and s["bytes"] == 4 << 16 for s in history)
    assert run.metrics()[-1] == {"step": 5, "loss": 2.5, "lr": 0.1}
    assert [c["step"] for c in run.checkpoints()] == [5, 4, 2]
    assert run.describe()["mode"] == "standalone"
    run.finish()
    with pytest.raises(ValueError, match="closed"):
        run.step()


def test_scalars_for_a_summary_writer(tmp_path):
    class Writer:
        def __init__(self):
            self.said = []

        def add_scalar(self, tag, scalar_value, global_step):
            assert scalar_value > 0
            self.said.append((tag, global_step))

    writer = Writer()
    run = ckpt.open(tmp_path, extra={"t": torch.ones(1 << 16)}, save_every=2, writer=writer)
    run.step()
    run.step()
    run.wait()
    run.step()
    run.finish()
    assert writer.said == [("ckpt/stall_seconds", 2), ("ckpt/bytes", 2), ("ckpt/durable_seconds", 2)]
    again = Writer()
    ckpt.open(tmp_path, extra={"t": torch.ones(1 << 16)}, writer=again).close()
    assert again.said == [("ckpt/restore_seconds", 2)]


def test_stop_without_exit(tmp_path):
    state = {"n": 0}
    run = ckpt.open(tmp_path, extra=state, exit_on_stop=False)
    run.step()
    assert not run.should_stop()
    os.kill(os.getpid(), signal.SIGTERM)
    state["n"] = 7
    run.step()
    assert run.should_stop()
    with pytest.raises(SystemExit) as caught:
        run.exit()
    assert caught.value.code == 75
    state["n"] = 0
    ckpt.open(tmp_path, extra=state).close()
    assert state["n"] == 7
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN  # a launcher's own does not reach what is leaving
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_fork_has_no_part_in_it(tmp_path):
    run = ckpt.open(tmp_path, extra={"n": 1}, save_every=1)
    run.step()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run.step()
        except ckpt.Error as error:
            code = 42 if error.code == "FAILED_PRECONDITION" and "fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(3)
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    run.step()
    run.finish()


class WhatAWorkerHolds(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return os.getpid(), held(), i


def held():
    """Descriptors that are no plain file, pipe or socket, and shared memory."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass  # it was that of the listing
    with open("/proc/self/maps") as maps:
        found += [line.split(None, 5)[5].strip() for line in maps if "memfd:" in line]
    return sorted(what for what in found if what.startswith("anon_inode") or "memfd:" in what or "/store/" in what)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_workers_hold_nothing_of_ours(tmp_path, method):
    """Nor do they take part in a suspend: SIGTERM ends a worker, and nothing else."""
    def load():
        return torch.utils.data.DataLoader(WhatAWorkerHolds(), batch_size=None, num_workers=1, multiprocessing_context=method)

    without = next(iter(load()))[1]
    loader = load()
    run = ckpt.open(tmp_path / "store", extra={"t": torch.zeros(50_000)}, loader=loader, save_every=1)
    run.step()
    run.wait(120)  # a directory that is being synced at the fork would be the worker's as well
    batches = iter(loader)
    pid, there, _ = next(batches)
    assert pid != os.getpid() and there == without
    run.step()
    os.kill(pid, signal.SIGTERM)
    with pytest.raises(RuntimeError, match="killed by signal|exited unexpectedly"):
        for _ in batches:
            pass
    run.step()
    assert not run.should_stop()
    run.finish()


def test_compiled_module_with_gradient_hooks(tmp_path):
    def clamp(parameter):
        parameter.grad.clamp_(-0.1, 0.1)

    def make(seed):
        model = net(seed)
        model[0].weight.register_hook(lambda gradient: gradient * 0.5)
        model[2].weight.register_post_accumulate_grad_hook(clamp)
        return torch.compile(model, backend="eager"), optimizer_for("AdamW", model)

    model, optimizer = make(1)
    run = ckpt.open(tmp_path, model=model, optim=optimizer, save_every=1, overlap=True)
    for _ in range(3):
        train(model, optimizer, 1)
        run.wait()  # a slot is free
        run.step()
    run.wait()
    going_on = train(model, optimizer, 3)
    run.close()
    model2, optimizer2 = make(2)
    run = ckpt.open(tmp_path, model=model2, optim=optimizer2)
    assert run.resumed_from == 3
    assert train(model2, optimizer2, 3) == going_on
    assert bits(model2._orig_mod.state_dict()) == bits(model._orig_mod.state_dict())
    run.close()


def test_import_is_light():
    code = "import sys, libckpt; print(sorted({'torch', 'numpy', 'libckpt._core'} & set(sys.modules)), libckpt.__version__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[] 0.1.0\n"
    code = "import time; begun = time.process_time(); import libckpt; print(time.process_time() - begun)"
    took = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(5)]
    assert min(took) < 0.05, took  # of processor time: other programs do not count


def test_types_are_shipped():
    import libckpt

    folder = os.path.dirname(libckpt.__file__)
    assert os.path.exists(os.path.join(folder, "py.typed")) and os.path.exists(os.path.join(folder, "_core.pyi"))
