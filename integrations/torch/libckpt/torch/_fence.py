"""Overlapped saves: step() returns while parameters and optimizer state are still being copied, and a hook on each tracked
optimizer waits for the copy before it changes them. Everything else was copied before step() returned.

What a tracked optimizer updates may be changed by such an optimizer, or after run.fence(), and by nothing else: torch's count of
the changes tells only afterwards, when the save may be committed already.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from typing import Any, Dict, Iterator, List, Optional

import torch

from .. import _core
from .._errors import Error
from ._tracked import LayoutChanged, Tracked

log = logging.getLogger("libckpt")

_TELL_EVERY = 30.0
_CANCEL_MAX = 60.0  # a cancelled writer looks at it between two chunks
_DURABLE = 3


class Fence:
    """All calls from the thread of the training loop."""

    def __init__(self, session: _core.Session, optimizers: List[torch.optim.Optimizer], save_every: int, alone: bool) -> None:
        self._session = session
        self._alone = alone  # of several ranks all count alike
        self._every = save_every
        self._steps = 0
        self._due = False
        self._save: Optional[_core.Save] = None
        self._step = 0
        self._tracked: Optional[Tracked] = None
        self._versions: Dict[str, int] = {}
        self._hooks = [optimizer.register_step_pre_hook(self._before_update) for optimizer in optimizers]

    def is_due(self) -> bool:
        """Once in a step. Stays true until begin()."""
        self._steps += 1
        self._due = self._due or (self._every > 0 and self._steps % self._every == 0)
        return self._due

    def begin(self, step: int, tracked: Tracked) -> None:
        """A save of `step` whose copy goes on behind. An Error: there is none. LayoutChanged: it stays due."""
        self._due = False
        try:
            self._save = self._session.save(step, True, 0.0)
        except LayoutChanged:
            self._due = self._alone
            raise
        self._step, self._tracked, self._versions = step, tracked, tracked.versions()

    def wait(self) -> None:
        """Until nobody copies any more, if somebody does: a copy that takes too long is cancelled, and its end awaited. An
        Error: something was changed before that; it says what became of the save."""
        if self._save is None or self._tracked is None:
            return
        save, tracked = self._save, self._tracked
        self._save = self._tracked = None
        with _telling(self._step, tracked.bytes):
            self._await_copy(save)
        try:
            save.progress()
        except Error:  # it failed: step() logs it
            return
        now = tracked.versions()
        changed = [name for name, version in self._versions.items() if now.get(name) != version]
        if changed:
            raise Error(
                f"tensor {changed[0]!r} was changed while the save of step {self._step} was being copied, and not by a step of a "
                f"tracked optimizer; {self._call_back(save)}. Call run.fence() before such a change, or open with overlap=False",
                "FAILED_PRECONDITION",
            )

    def _await_copy(self, save: _core.Save) -> None:
        while True:
            try:
                return self._session.fence()
            except Error as error:
                if error.code != "DEADLINE_EXCEEDED":  # of an earlier save: the library tells it once the copy is over
                    return
                log.error("step %d: copying took too long, its save is cancelled; training goes on when the copier has left the "
                          "memory: %s", self._step, error)
                with contextlib.suppress(Error):  # under ckpt-run the deadline alone has ended the copy
                    save.cancel()

    def _call_back(self, save: _core.Save) -> str:
        """What became of a torn save. Only a failure that the library has noted counts as given up."""
        level = 0
        try:
            with contextlib.suppress(Error):  # under ckpt-run it cannot be cancelled; of a wait progress() says more
                save.cancel()
                if self._alone:
                    save.wait(_DURABLE, _CANCEL_MAX)
            level = save.progress()[0]
        except Error as error:
            if not error.applied:
                return "that save is given up"
        store = json.loads(self._session.describe()).get("store") or "STORE"
        when = "" if level == _DURABLE else ", if it becomes durable,"
        return (f"the checkpoint of step {self._step}{when} is torn and must not be resumed from: open with resume=\"step:N\" of "
                f"another one (`ckptctl ls {store}`); `ckptctl prune {store} --keep-last 1` removes it once a newer save is durable")

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before_update(self, *_: Any) -> None:
        if not self._session.closed:
            self.wait()


@contextlib.contextmanager
def _telling(step: int, nbytes: int) -> Iterator[None]:
    """A log line now and then while the thread of the loop waits inside the library."""
    over = threading.Event()
    begun = time.monotonic()

    def tell() -> None:
        while not over.wait(_TELL_EVERY):
            log.warning("step %d: waiting for %.0f s until its %d bytes of tensors are copied; nothing is updated before that",
                        step, time.monotonic() - begun, nbytes)

    teller = threading.Thread(target=tell, name="ckpt-fence", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
