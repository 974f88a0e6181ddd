"""A training run: opened, stepped, suspended, finished."""

from __future__ import annotations

import atexit
import collections
import json
import logging
import os
import signal as signals_module
import sys
import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, Iterator, List, NoReturn, Optional, Type, Union

import torch

from .. import EXIT_SUSPENDED, _core
from .._errors import CODES, Error
from . import _dist
from ._fence import Fence
from ._parts import NumberPart, Part, Source, Value, World
from ._rng import RngPart
from ._tensors import REPLICATED, UNSHARDED
from ._tracked import LayoutChanged, Tracked, version_of

log = logging.getLogger("libckpt")

_LEVELS = ("none", "staged", "staged_gang", "durable")
_LOG_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_SAVE, _STOP = 1, 2
_METRICS_KEPT = 1000
_FORMAT = 1
#: What a save may fail with while training had better go on; all else is a mistake to be told.
_WEATHER = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "DATA_LOSS", "INTERNAL", "ABORTED", "CANCELLED",
            "UNKNOWN", "PERMISSION_DENIED")


def _is_weather(error: Exception) -> bool:
    return isinstance(error, Error) and error.code in _WEATHER


class PerRank:
    """See per_rank()."""

    def __init__(self, target: Any) -> None:
        self.target = target


def per_rank(target: Any) -> PerRank:
    """Marks an object of which each rank has its own: ``extra=ckpt.per_rank(state)``."""
    return PerRank(target)


class Save:
    """A save on its way: staged (the loop may go on), then durable (committed in the store)."""

    def __init__(self, core: _core.Save, step: int, nbytes: int) -> None:
        self._core = core
        self.step = step
        self.bytes = nbytes

    def wait(self, level: str = "durable", timeout: Optional[float] = None) -> "Save":
        """Blocks until `level` ("staged", "staged_gang", "durable"). An Error with code DEADLINE_EXCEEDED says that the
        save goes on; any other one is the save's own. Several ranks without ckpt-run: all ranks call it."""
        self._core.wait(_LEVELS.index(level), timeout)
        return self

    @property
    def level(self) -> str:
        return _LEVELS[self._core.progress()[0]]

    @property
    def durable(self) -> bool:
        return self.level == "durable"

    def progress(self) -> Dict[str, Any]:
        level, done, total = self._core.progress()
        return {"step": self.step, "level": _LEVELS[level], "bytes_done": done, "bytes_total": total}


class Run:
    """What ckpt.open returns. One per process; all calls from the thread of the training loop."""

    def __init__(
        self,
        path: Union[str, "os.PathLike[str]", None],
        makers: List[Callable[[World], Part]],
        *,
        save_every: int,
        signals: Iterable[int],
        exit_on_stop: bool,
        resume: Optional[str],
        rng: bool,
        fenced: Optional[List[torch.optim.Optimizer]] = None,
        writer: Any = None,
    ) -> None:
        """As ckpt.open. `fenced`: saves overlap, and these optimizers wait for them."""
        rank, size = _dist.rank_and_world()
        managed = bool(os.environ.get("CKPT_RUN"))
        if size > 1 and not managed and not _dist.initialized():
            raise Error(
                f"WORLD_SIZE is {size}: call torch.distributed.init_process_group before ckpt.open, or start the ranks by "
                "ckpt-run",
                "FAILED_PRECONDITION",
            )
        self._group = _dist.make_group(size)
        self.rank, self.world_size = rank, size
        self.global_step = 0
        self.resumed_from: Optional[int] = None
        self.timings: Dict[str, Any] = {}
        self._writer = writer if rank == 0 else None
        self._exit_on_stop = exit_on_stop
        self._managed = managed
        self._stop = False
        self._finished = False
        self._world = World(rank, size, REPLICATED if self._group or size == 1 else UNSHARDED)
        self._parts: List[Part] = [NumberPart("step", lambda: self.global_step, self._set_step), _Meta(self)]
        self._parts += [make(self._world) for make in makers]
        if rng:
            self._parts.append(RngPart(self._world))
        self._tracked: Optional[Tracked] = None
        self._stale = True
        self._pending_announce: List[Dict[str, Any]] = []
        self._saves: "collections.deque[Dict[str, Any]]" = collections.deque(maxlen=_METRICS_KEPT)
        self._metrics: "collections.deque[Dict[str, Any]]" = collections.deque(maxlen=_METRICS_KEPT)
        self._signals = {int(number) for number in signals}
        self._interrupt = _SecondInterrupt() if signals_module.SIGINT in self._signals else None
        self._session = _core.Session(
            store=None if path is None or managed else os.fspath(path),
            rank=rank,
            world_size=size,
            allgather=None if managed or self._group is None else self._group.allgather,
            signals=sum(1 << number for number in self._signals),
            save_every=save_every if fenced is None else 0,
            log=_log_line,
        )
        self._fence = None if fenced is None else Fence(self._session, fenced, save_every, alone=size == 1)
        self._pid = os.getpid()
        atexit.register(self._at_exit)
        try:
            if managed and self._group is not None:
                self._session.register_communicator(
                    "torch.distributed", _quiesce, lambda deadline: None, self._comm_up, self._comm_verify
                )
            if resume is not None:
                self._restore(resume)
        except BaseException:
            self._give_up()
            raise

    # ---- the loop ----

    def step(self, step: Optional[int] = None, **metrics: Any) -> None:
        """The step boundary: call it once in an iteration of the loop, after optimizer and scheduler, equally often on all
        ranks. Saves when one is due. When the job must make room, it saves, and leaves the process with exit code 75.

        `step`: the user's own number for what has been completed; counted by itself if not given. `metrics` are kept for
        metrics(). A save that fails for reasons of storage is logged and training goes on; what cannot be expressed
        raises.
        """
        self.fence()
        self.global_step = self.global_step + 1 if step is None else int(step)
        if metrics:
            self._metrics.append({"step": self.global_step, **{k: _number(v) for k, v in metrics.items()}})
        if self._must_track():
            self._track()
        begun = time.perf_counter()
        try:
            kind, _, _, error = self._session.step(self.global_step)
            if kind == 0 and self._fence is not None and self._fence.is_due():
                self._save_behind(begun)
        except LayoutChanged:
            self._stale = True
            log.warning("step %d: tensors came or went inside the step that was to be saved; saved at the next one",
                        self.global_step)
            return
        if error is not None and not _is_weather(error):  # else the library has logged it
            raise error
        if kind == _SAVE:
            self._note_save(begun)
        elif kind == _STOP:
            self._note_save(begun)
            self._stop = True
            if self._exit_on_stop:
                self.exit()
        if self._pending_announce:
            self._announce()

    def should_stop(self) -> bool:
        """True after a step() that was told to stop (with ``exit_on_stop=False``): leave the loop and call exit()."""
        return self._stop

    def exit(self) -> NoReturn:
        """Leaves with exit code 75: the state is saved, and whoever started this process will start it again."""
        if self.rank == 0:
            log.info("suspended at step %d; leaving with exit code %d", self.global_step, EXIT_SUSPENDED)
        if threading.current_thread() is threading.main_thread():
            for number in self._signals - {signals_module.SIGINT}:  # a launcher repeats them to ranks that are leaving
                signals_module.signal(number, signals_module.SIG_IGN)
        self._close(None)
        _dist.end_torchrun()
        _dist.leave()
        raise SystemExit(EXIT_SUSPENDED)

    def save(self, wait: bool = False, timeout: Optional[float] = None) -> Save:
        """Saves now, under the number of the last step. All ranks call it at the same point. Staged on return; with `wait`
        durable. `timeout` also bounds the wait for staging memory that earlier saves still use."""
        self.fence()
        if self._must_track():
            self._track()
        begun = time.perf_counter()
        try:
            core = self._session.save(self.global_step, False, 3600.0 if timeout is None else timeout)
        except LayoutChanged:
            self._track()
            core = self._session.save(self.global_step, False, 3600.0 if timeout is None else timeout)
        assert self._tracked is not None
        self._note_save(begun)
        save = Save(core, self.global_step, self._tracked.bytes)
        return save.wait(timeout=timeout) if wait else save

    def fence(self) -> None:
        """Waits until an overlapped save is copied. The step of a tracked optimizer does it by itself; call it before any
        other change of what such an optimizer updates."""
        if self._fence is not None and not self._session.closed:
            self._fence.wait()

    def wait(self, timeout: Optional[float] = None) -> None:
        """Blocks until all saves so far are durable; an Error if one failed or the time is over. Several ranks without
        ckpt-run: use save(wait=True) or finish(), which all ranks call."""
        if self.world_size > 1 and not self._managed:
            raise Error("several ranks without ckpt-run wait together: use save(wait=True) or finish()", "UNIMPLEMENTED")
        self.fence()  # until then an overlapped save is none
        waiting = self._drain(timeout)
        if waiting:
            raise Error(f"not durable yet: step {waiting[-1]['step']}; it goes on", "DEADLINE_EXCEEDED", True)
        for save in self._library_saves():
            if "error" in save and save["step"] == self.global_step:
                raise Error(f"the save of step {save['step']} failed: {save['error']}", "ABORTED")

    def phase(self, name: str, expected_seconds: float = 0.0) -> None:
        """Says that no step will come for a while: "setup", "compile", "evaluation"; "train" ends it. An overlapped save is
        over before that: its fence would come with the next update only."""
        if name != "train":
            self.fence()
        self._session.phase(("train", "setup", "compile", "evaluation").index(name), expected_seconds)

    # ---- what happened ----

    def history(self) -> List[Dict[str, Any]]:
        """The saves of this process, oldest first: step, bytes, stall_seconds, level."""
        levels = {s["step"]: s for s in self._library_saves()} if not self._session.closed else {}
        for entry in self._saves:
            known = levels.get(entry["step"])
            if known is not None and entry.get("level") not in ("durable", "failed"):
                _take_level(entry, known)
        return [dict(entry) for entry in self._saves]

    def metrics(self) -> List[Dict[str, Any]]:
        """What step() was given, the newest thousand."""
        return [{k: _number(v, now=True) for k, v in entry.items()} for entry in self._metrics]

    def checkpoints(self) -> List[Dict[str, Any]]:
        """What the store holds, newest first: name, step, epoch, attempt."""
        found: List[Dict[str, Any]] = json.loads(self._session.list())
        return found

    def describe(self) -> Dict[str, Any]:
        """What the library says about this session."""
        said: Dict[str, Any] = json.loads(self._session.describe())
        return said

    # ---- the end ----

    def finish(self, save: bool = False) -> None:
        """The training is complete: a suspend that has not begun is void, and what is in flight becomes durable."""
        if self._session.closed:
            return
        torn = self._last_fence()
        if save and not (self._saves and self._saves[-1]["step"] == self.global_step):
            self.save()
        self._finished = True
        self._session.finish()
        self._close(None)
        if torn is not None:
            raise torn

    def close(self, timeout: Optional[float] = None) -> None:
        """Ends the session without saying that the training is complete; waits for what is in flight."""
        self._close(timeout)

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self._give_up(None)  # what is in flight becomes durable all the same

    def _close(self, timeout: Optional[float]) -> None:
        atexit.unregister(self._at_exit)
        if self._session.closed:
            return
        torn = self._last_fence()
        if self._fence is not None:
            self._fence.remove()
        drains_alone = self._managed and self._stop  # ckpt-run writes on without us
        if not drains_alone and (self.world_size == 1 or self._managed):
            self._drain(timeout)
        self.history()
        if self._interrupt is not None:
            self._interrupt.undo()
        try:
            self._session.close(timeout)
        except Error as error:
            if not self._saves or self._saves[-1]["level"] != "durable":
                raise
            log.error("an earlier save failed: %s", error)  # and a newer one did not
        for entry in self._saves:
            if entry["level"] != "failed" and not drains_alone:
                entry["level"] = "durable"
        if torn is not None:
            raise torn

    def _last_fence(self) -> Optional[Error]:
        """What a last overlapped save has to say; the session is closed before it is raised."""
        try:
            self.fence()
        except Error as error:
            return error
        return None

    def _drain(self, timeout: Optional[float]) -> List[Dict[str, Any]]:
        """Waits until every save has ended; those that have not at the deadline."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            waiting = [s for s in self._library_saves() if s["level"] != "SHARED" and "error" not in s]
            if not waiting or (deadline is not None and time.monotonic() > deadline):
                return waiting
            time.sleep(0.005)

    def _give_up(self, timeout: Optional[float] = 0.0) -> None:
        """After an exception, which goes first. Several ranks without ckpt-run close together, and the others do not come
        to an end with this one: there the session is left to the end of the process."""
        atexit.unregister(self._at_exit)
        if self._fence is not None:
            self._fence.remove()
        if self._interrupt is not None:
            self._interrupt.undo()
        if self.world_size > 1 and not self._managed:
            return self._session.abandon()
        try:
            self._session.close(timeout)
        except Error as error:
            log.error("closing after an exception: %s", error)

    def _at_exit(self) -> None:
        if self._session.closed or os.getpid() != self._pid:
            return
        failed = getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None
        if failed and self.world_size > 1 and not self._managed:
            return self._give_up()
        try:
            if not failed and not self._stop:
                self._session.finish()
            self._close(None)
        except Error as error:
            log.error("at exit: %s", error)

    # ---- for what builds on it ----

    def peek(self, selector: str, name: str) -> Any:
        """What this rank has under `name` in the checkpoint that attach() would take; None without one."""
        try:
            reader = self._session.reader(selector)
        except Error as error:
            if error.code == "NOT_FOUND":
                return None
            raise
        try:
            return Source(reader).blob(name)
        finally:
            reader.close()

    def attach(self, makers: List[Callable[[World], Part]], resume: Optional[str]) -> None:
        """More to track, before the first step; restores all if told from where."""
        self._parts += [make(self._world) for make in makers]
        if resume is not None:
            self._restore(resume)

    # ---- inside ----

    def _set_step(self, step: int) -> None:
        self.global_step = step

    def _must_track(self) -> bool:
        mine = self._stale or self._tracked is None or self._tracked.version != version_of(self._parts)
        if self.world_size == 1 or self._managed or self._group is None:
            return mine
        return self._group.any(mine)

    def _track(self) -> None:
        tracked = Tracked(self._parts, self._world, self._tracked, overlap=self._fence is not None)
        if self._group is not None:
            tracked.compare(self._group)
        self._session.track(tracked.state, tracked.refresh)
        self._tracked = tracked
        self._stale = False

    def _restore(self, selector: str) -> None:
        begun = time.perf_counter()
        candidates = iter([selector])
        refused: List[str] = []
        for name in _then(candidates, lambda: self._older(refused)):
            problem = self._try_restore(name)
            damaged = problem is not None and problem.code == "DATA_LOSS"
            anywhere = self._group.any(problem is not None) if self._group is not None else problem is not None
            if not anywhere:
                break
            if problem is not None and problem.code == "NOT_FOUND" and name == selector and not refused:
                return  # a fresh start
            if problem is not None and not damaged:
                raise problem
            log.error("checkpoint %s: %s; trying an older one", name or "(newest)", problem or "another rank cannot load it")
            refused.append(name)
        else:
            raise Error(f"no checkpoint can be loaded; tried {len(refused)}", "DATA_LOSS")
        self.timings["restore_seconds"] = time.perf_counter() - begun
        if self.resumed_from is not None:
            self._scalar("restore_seconds", self.timings["restore_seconds"], self.resumed_from)
        if self.resumed_from is not None and self.rank == 0:
            log.info("resumed from step %d in %.2f s", self.resumed_from, self.timings["restore_seconds"])

    def _older(self, refused: List[str]) -> Iterable[str]:
        names = [entry["name"] for entry in self.checkpoints()]
        return names[1:]

    def _try_restore(self, selector: str) -> Optional[Error]:
        try:
            reader = self._session.reader(selector)
        except Error as error:
            return error
        try:
            self._load(reader)
            return None
        except Error as error:
            return error
        finally:
            reader.close()

    def _load(self, reader: _core.Reader) -> None:
        source = Source(reader)
        self._world.stored = check_format(source)["world"]
        missing = sorted(set(source.blob("libckpt.parts")) - set(self._part_names()))
        if missing:
            raise Error(f"the checkpoint also holds {', '.join(missing)}; give ckpt.open all that was saved",
                        "INVALID_ARGUMENT")
        try:
            for part in self._parts:
                part.prepare(source)
            tracked = Tracked(self._parts, self._world)
            reader.load(tracked.state)
            tracked.spread_mirrors()
            for part in self._parts:
                part.restore(source)
        finally:
            self._world.stored = 0
        self.resumed_from = self.global_step

    def _part_names(self) -> List[str]:
        return [part.prefix for part in self._parts if part.prefix]

    def _comm_up(self, fresh_id: str, kv: _core.KeyValue, deadline_ns: int) -> None:
        if not _dist.initialized():
            raise Error("torch.distributed is not initialized", "FAILED_PRECONDITION")

    def _comm_verify(self, deadline_ns: int) -> None:
        assert self._group is not None
        ranks = self._group.allgather(self.rank.to_bytes(4, "little"))
        if ranks != b"".join(r.to_bytes(4, "little") for r in range(self.world_size)):
            raise Error("the process group does not connect the ranks in order", "INTERNAL")

    # ---- notes ----

    def _storage_trouble(self, error: Exception) -> None:
        if not _is_weather(error):
            raise error
        level = logging.WARNING if error.code == "RESOURCE_EXHAUSTED" else logging.ERROR
        log.log(level, "step %d: not saved, training goes on: %s", self.global_step, error)

    def _save_behind(self, begun: float) -> None:
        assert self._fence is not None and self._tracked is not None
        try:
            self._fence.begin(self.global_step, self._tracked)
        except Error as error:
            return self._storage_trouble(error)
        self._note_save(begun, "copying")

    def _note_save(self, begun: float, level: str = "staged") -> None:
        assert self._tracked is not None
        stall = time.perf_counter() - begun
        entry = {"step": self.global_step, "bytes": self._tracked.bytes, "stall_seconds": stall, "level": level,
                 "begun": begun}
        self._saves.append(entry)
        self._pending_announce.append(entry)
        self._scalar("stall_seconds", stall, self.global_step)
        self._scalar("bytes", self._tracked.bytes, self.global_step)
        if self.rank == 0:
            log.info("step %d: %s %s, %.3f s", self.global_step, _size(self._tracked.bytes), level, stall)

    def _announce(self) -> None:
        known = {s["step"]: s for s in self._library_saves()}
        for entry in list(self._pending_announce):
            save = known.get(entry["step"])
            if save is not None:
                _take_level(entry, save)
            if save is None or entry["level"] in ("durable", "failed"):
                self._pending_announce.remove(entry)
                told = self._fence is not None and entry["step"] == self._fence.torn_step
                if entry["level"] == "failed" and not told:
                    self._storage_trouble(_as_error(entry["error"], entry["step"]))
                elif self.rank == 0 and entry["level"] == "durable":
                    log.info("step %d: durable", entry["step"])
                    self._scalar("durable_seconds", entry["durable_seconds"], entry["step"])

    def _scalar(self, name: str, value: float, step: int) -> None:
        if self._writer is not None:
            self._writer.add_scalar(f"ckpt/{name}", value, step)

    def _library_saves(self) -> List[Dict[str, Any]]:
        saves: List[Dict[str, Any]] = self.describe()["saves"]
        return saves[::-1]


class _SecondInterrupt:
    """Ctrl-C asks for a suspend; a second one interrupts, as ever. The library's handler chains to this one."""

    def __init__(self) -> None:
        self._count = 0
        self._before = signals_module.getsignal(signals_module.SIGINT)
        default = self._before is signals_module.default_int_handler
        self._mine = default and threading.current_thread() is threading.main_thread()
        if self._mine:
            signals_module.signal(signals_module.SIGINT, self._handle)

    def _handle(self, number: int, frame: Any) -> None:
        self._count += 1
        if self._count > 1:
            signals_module.default_int_handler(number, frame)
        log.warning("interrupted: the next step saves and leaves; once more ends it at once")

    def undo(self) -> None:
        if self._mine:
            self._mine = False
            signals_module.signal(signals_module.SIGINT, self._before)


class _Meta(Part):
    """What a reader must know first."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def values(self) -> Iterator[Value]:
        value = {"format": _FORMAT, "torch": str(torch.__version__), "world": self._run.world_size}
        yield "libckpt.torch", False, value, "libckpt.torch"
        yield "libckpt.parts", True, sorted(self._run._part_names()), "libckpt.parts"


def check_format(source: Source) -> Dict[str, Any]:
    """What the checkpoint says about itself; an Error if this release cannot read it."""
    meta: Optional[Dict[str, Any]] = source.value("libckpt.torch")
    if meta is None:
        raise Error("this checkpoint was not written by libckpt.torch", "INVALID_ARGUMENT")
    if meta["format"] > _FORMAT:
        raise Error(f"this checkpoint has format {meta['format']} of libckpt.torch; this release knows {_FORMAT}",
                    "FAILED_PRECONDITION")
    return meta


def _take_level(entry: Dict[str, Any], save: Dict[str, Any]) -> None:
    if "error" in save:
        entry["level"], entry["error"] = "failed", save["error"]
    elif save["level"] == "SHARED":
        entry["level"] = "durable"
        entry["durable_seconds"] = time.perf_counter() - entry["begun"]
    else:
        entry["level"] = "copying" if save["level"] == "NONE" else save["level"].lower()


def _as_error(text: str, step: int) -> Error:
    """The error of a save as the library writes it down: its code, then what happened."""
    code, _, message = text.partition(": ")
    return Error(f"the save of step {step}: {message}", code) if code in CODES.values() else Error(text)


def _then(first: Iterable[str], more: Any) -> Iterable[str]:
    yield from first
    yield from more()


def _number(value: Any, now: bool = False) -> Any:
    """A tensor on the host becomes a number at once; one on a device when it is asked for, since that waits for it."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and (now or value.device.type == "cpu"):
            return value.detach().item()
        return value.detach()
    return value


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def _log_line(level: int, message: str) -> None:
    log.log(_LOG_LEVELS[level] if 0 <= level < len(_LOG_LEVELS) else logging.ERROR, "%s", message)


def _quiesce(deadline_ns: int) -> None:
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()


DEFAULT_SIGNALS = (signals_module.SIGTERM,)
