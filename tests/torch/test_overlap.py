"""Overlapped saves: what a checkpoint holds is what was there when step() was called, however late the copy is made. The
latest copier that there can be copies everything in the fence; a change before the fence would be in what it saves."""

import os
import signal
import time

import pytest
import torch
from torch import nn

import libckpt.torch as ckpt


class LatestCopier:
    """The session of a run, but an overlapped save is made when the fence is called, and not before."""

    def __init__(self, session):
        self._session = session
        self._late = None

    def save(self, step, overlap=False, slot_timeout=0.0, changed=None):
        if not overlap:
            return self._session.save(step, overlap, slot_timeout)
        assert self._late is None, "two copies at once"
        self.before_stage()  # what is copied at once
        self._late = (step, slot_timeout, changed)
        return self

    def fence(self):
        if self._late is not None:
            (step, patience, changed), self._late = self._late, None
            self.in_fence = True
            if not changed():
                self._session.save(step, False, patience)
            self.in_fence = False

    def track(self, state, before_stage):
        def once():
            if not getattr(self, "in_fence", False):
                before_stage()

        self.before_stage = before_stage
        self._session.track(state, once)

    def __getattr__(self, name):
        return getattr(self._session, name)


def late(run):
    run._session = run._fence._session = LatestCopier(run._session)
    return run


def made(seed=1):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 3))
    model[2].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    ema = torch.optim.swa_utils.AveragedModel(model)
    extra = {"seen": torch.zeros(3000), "count": 0}
    return {"model": model, "optim": optimizer, "scheduler": scheduler, "ema": ema, "extra": extra}


def picture(given):
    tensors = [*given["model"].state_dict().values(), *given["ema"].state_dict().values(), given["extra"]["seen"]]
    for state in given["optim"].state.values():
        tensors += [state[key] for key in sorted(state)]
    return [t.clone() for t in tensors], given["extra"]["count"], given["scheduler"].state_dict(), torch.get_rng_state()


def equal(a, b):
    return all(map(torch.equal, a[0], b[0])) and len(a[0]) == len(b[0]) and a[1:3] == b[1:3] and torch.equal(a[3], b[3])


def train(given, run, steps, expected):
    """Changes as early as a program may: buffers in the forward, extra right after step(), an average before the update."""
    model, optimizer = given["model"], given["optim"]
    for _ in range(steps):
        given["extra"]["seen"] += 1
        given["extra"]["count"] += 1
        loss = model(torch.randn(5, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        given["ema"].update_parameters(model)
        with torch.no_grad():
            model[2].weight += 1  # frozen, and changed by hand
        optimizer.step()
        given["scheduler"].step()
        expected[run.global_step + 1] = picture(given)
        run.step(loss=loss)


def check(path, steps, expected):
    for step in steps:
        again = made(seed=2)
        ckpt.open(path, **again, resume=f"step:{step}", signals=()).close()
        assert equal(picture(again), expected[step]), step


@pytest.mark.parametrize("copier", ["latest", "own"])
def test_what_was_there_at_step_is_saved(tmp_path, copier):
    given, expected = made(), {}
    run = ckpt.open(tmp_path, **given, save_every=1, overlap=True)
    run = late(run) if copier == "latest" else run
    for _ in range(6):
        train(given, run, 1, expected)
        run.fence()
        run.wait()
    run.finish()
    assert [entry["level"] for entry in run.history()] == ["durable"] * 6
    check(tmp_path, range(1, 7), expected)
    assert not given["optim"]._optimizer_step_pre_hooks


def test_the_update_waits(tmp_path, monkeypatch):
    """Without the wait in the hook the latest copier would save what the update has made."""
    from libckpt.torch._fence import Fence

    monkeypatch.setattr(Fence, "_before_update", lambda self, *_: None)
    given, expected = made(), {}
    run = late(ckpt.open(tmp_path, **given, save_every=2, overlap=True))
    train(given, run, 2, expected)
    with pytest.raises(ckpt.Error, match="was changed while the save of step 2"):
        train(given, run, 2, expected)
    run._session = run._fence._session = run._session._session
    run.close()


def committed(path):
    return {int(commit.parent.name[1:].split(".")[0]) for commit in path.glob("s*/COMMIT")}


@pytest.mark.parametrize("when", ["at once", "when it is copied"])
def test_a_change_by_hand_before_the_fence(tmp_path, when):
    """However early the copy is complete, the save is none before the fence."""
    model = nn.Linear(400, 400)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ckpt.open(tmp_path, model=model, optim=optimizer, save_every=2, overlap=True)
    run.step()
    run.step()
    if when != "at once":
        time.sleep(0.5)
    assert run.history()[-1]["level"] == "copying"
    with torch.no_grad():
        model.weight += 1
    with pytest.raises(ckpt.Error, match="'model/weight' was changed while the save of step 2 .*given up.*run.fence") as raised:
        run.step()
    assert raised.value.code == "FAILED_PRECONDITION"
    assert run.history()[-1]["level"] == "failed"
    run.step()
    run.step()
    run.fence()
    with torch.no_grad():
        model.weight += 1
    run.finish()
    assert committed(tmp_path) == {4}
    other = nn.Linear(400, 400)
    assert ckpt.load(tmp_path, model=other) == 4
    assert torch.equal(other.weight + 1, model.weight)


def test_who_waits_until_it_is_durable_may_change_it(tmp_path):
    model = nn.Linear(400, 400)
    run = ckpt.open(tmp_path, model=model, optim=torch.optim.SGD(model.parameters(), lr=0.1), save_every=2, overlap=True)
    run.step()
    run.step()
    run.wait(60)
    with torch.no_grad():
        model.weight += 1
    run.step()
    run.finish()
    other = nn.Linear(400, 400)
    assert ckpt.load(tmp_path, model=other) == 2
    assert torch.equal(other.weight + 1, model.weight)


@pytest.mark.parametrize("end", ["finish", "close"])
def test_a_change_by_hand_is_found_at_the_end_too(tmp_path, end):
    model = nn.Linear(4, 4)
    run = ckpt.open(tmp_path, model=model, optim=torch.optim.SGD(model.parameters(), lr=0.1), save_every=1, overlap=True)
    run.step()
    with torch.no_grad():
        model.weight += 1
    with pytest.raises(ckpt.Error, match="'model/weight' was changed.*that save is given up"):
        getattr(run, end)()
    assert run._session.closed and committed(tmp_path) == set()
    run = ckpt.open(tmp_path, model=model)
    assert run.resumed_from is None
    run.close()


def test_real_copies_are_never_torn(tmp_path):
    """Every parameter is equal to the number of its step, while a copier of the library runs beside the update."""
    model = nn.ParameterList(torch.zeros(600_000) for _ in range(5))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = ckpt.open(tmp_path, model=model, optim=optimizer, save_every=1, overlap=True, rng=False)
    for parameter in model:
        parameter.grad = torch.full_like(parameter, -1.0)
    saved = []
    for _ in range(15):
        optimizer.step()
        run.step()
        saved += [entry["step"] for entry in run.history()[-1:] if entry["step"] == run.global_step]
        time.sleep(0.001)
    run.finish()
    kept = sorted(committed(tmp_path))
    assert kept and set(kept) <= set(saved)
    for step in kept:
        other = nn.ParameterList(torch.zeros(600_000) for _ in range(5))
        ckpt.load(tmp_path, model=other, selector=f"step:{step}")
        assert all(parameter.eq(step).all() for parameter in other), step


def test_an_update_waits_for_a_copy_beyond_its_deadline(tmp_path, caplog, monkeypatch):
    """The copy is made in the third fence, after two that ran out of time; the optimizer writes after that."""
    monkeypatch.setattr("libckpt.torch._fence._TELL_EVERY", 0.01)
    given, expected = made(), {}
    run = ckpt.open(tmp_path, **given, save_every=1, overlap=True)
    fences, cancels = [], []

    class Slow(LatestCopier):
        def fence(self):
            fences.append(given["optim"].state[given["model"][0].weight]["step"].item())
            if len(fences) % 3:
                time.sleep(0.1)
                raise ckpt.Error("copying takes too long", "DEADLINE_EXCEEDED")
            super().fence()

        def cancel(self):
            cancels.append(len(fences))

    run._session = run._fence._session = Slow(run._session)
    train(given, run, 1, expected)
    train(given, run, 1, expected)
    run.fence()
    assert fences == [1, 1, 1, 2, 2, 2] and cancels == [1, 2, 4, 5]
    assert "step 1: copying took too long" in caplog.text and "until its" in caplog.text
    run._session = run._fence._session = run._session._session
    run.finish()
    check(tmp_path, [1, 2], expected)


def test_gradients_of_several_passes_and_an_optimizer_in_the_backward(tmp_path):
    """The hook fires wherever the optimizer steps."""
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 3))
    optimizers = {name: torch.optim.SGD([p], lr=0.1) for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        def update(p, own=optimizers[name]):
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    run = late(ckpt.open(tmp_path, model=model, optim=optimizers, save_every=1, overlap=True))
    run.step()
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.ones(2, 300)).sum().backward()
    assert not torch.equal(before[0], model[0].weight)
    run.finish()
    other = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 3))
    assert ckpt.load(tmp_path, model=other, selector="step:1") == 1
    assert all(map(torch.equal, before, other.parameters()))


def test_suspended_while_a_copy_is_under_way(tmp_path):
    given, expected = made(), {}
    run = ckpt.open(tmp_path, **given, save_every=1, overlap=True, exit_on_stop=False)
    train(given, run, 3, expected)
    os.kill(os.getpid(), signal.SIGTERM)
    train(given, run, 1, expected)
    assert run.should_stop()
    with pytest.raises(SystemExit):
        run.exit()
    again = made(seed=2)
    run = ckpt.open(tmp_path, **again)
    assert run.resumed_from == 4 and equal(picture(again), expected[4])
    run.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_an_overlapped_save_before_an_evaluation_is_durable_in_it(tmp_path):
    """No update comes for long, whose fence would be the save's."""
    given, expected = made(), {}
    run = ckpt.open(tmp_path, **given, save_every=1, overlap=True)
    train(given, run, 1, expected)
    run.phase("evaluation", 600)
    deadline = time.monotonic() + 60
    while run.history()[-1]["level"] != "durable" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert run.history()[-1]["level"] == "durable"
    run.phase("train")
    run.finish()
    check(tmp_path, [1], expected)
