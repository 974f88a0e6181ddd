"""Overlapped saves: step() returns while parameters and optimizer state are still being copied, and a hook on each tracked
optimizer waits for the copy before it changes them. Everything else was copied before step() returned.

What a tracked optimizer updates may be changed by such an optimizer, or after run.fence(), and by nothing else. The library asks at
the fence, before the save counts, and torch's count of the changes answers: a torn copy is given up, and nobody can resume from it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import weakref
from typing import Any, Dict, Iterator, List, Optional

import torch

from .. import _core
from .._errors import Error
from ._tracked import LayoutChanged, Tracked

log = logging.getLogger("libckpt")

_TELL_EVERY = 30.0


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
        self._torn: Optional[str] = None  # a tensor that was changed too early
        self.torn_step: Optional[int] = None  # the newest save that wait() has raised for
        self._hooks = [optimizer.register_step_pre_hook(self._before_update) for optimizer in optimizers]

    def is_due(self) -> bool:
        """Once in a step. Stays true until begin()."""
        self._steps += 1
        self._due = self._due or (self._every > 0 and self._steps % self._every == 0)
        return self._due

    def begin(self, step: int, tracked: Tracked) -> None:
        """A save of `step` whose copy goes on behind. An Error: there is none. LayoutChanged: it stays due."""
        self._due = False
        # The library keeps this while it may still ask; the tensors are not kept by it.
        changed = functools.partial(self._changed, weakref.ref(tracked), tracked.versions())
        try:
            self._save = self._session.save(step, True, 0.0, changed)
        except LayoutChanged:
            self._due = self._alone
            raise
        self._step, self._tracked = step, tracked

    def wait(self) -> None:
        """Until nobody copies any more, if somebody does: a copy that takes too long is cancelled, and its end awaited. An
        Error: something was changed before that, and the save is given up."""
        if self._save is None or self._tracked is None:
            return
        save, tracked = self._save, self._tracked
        self._save = self._tracked = self._torn = None
        with _telling(self._step, tracked.bytes):
            self._await_copy(save)
        if self._torn is not None:
            self.torn_step = self._step
            raise Error(
                f"tensor {self._torn!r} was changed while the save of step {self._step} was being copied, and not by a step of a "
                "tracked optimizer; that save is given up. Call run.fence() before such a change, or open with overlap=False",
                "FAILED_PRECONDITION",
            )

    def _changed(self, of: "weakref.ref[Tracked]", versions: Dict[str, int]) -> bool:
        tracked = of()
        now = {} if tracked is None else tracked.versions()
        changed = [name for name, version in versions.items() if now.get(name) != version]
        self._torn = changed[0] if changed else None
        return bool(changed)

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
