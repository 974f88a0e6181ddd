"""Overlapped saves: step() returns while parameters and optimizer state are still being copied, and a hook on each tracked
optimizer waits for the copy before it changes them. Everything else was copied before step() returned.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch

from .. import _core
from .._errors import Error
from ._tracked import LayoutChanged, Tracked


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
        """Until the copy is complete, if there is one. An Error: something was changed before that."""
        if self._save is None or self._tracked is None:
            return
        save, tracked = self._save, self._tracked
        self._save = self._tracked = None
        try:
            self._session.fence()
        except Error:  # it failed, or takes too long: the save is given up, and step() tells it
            return save.cancel()
        now = tracked.versions()
        changed = [name for name, version in self._versions.items() if now.get(name) != version]
        if changed:
            save.cancel()
            raise Error(
                f"tensor {changed[0]!r} was changed while the save of step {self._step} was being copied, and not by a step of a "
                "tracked optimizer; that save is given up. Call run.fence() before such a change, or open with overlap=False",
                "FAILED_PRECONDITION",
            )

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before_update(self, *_: Any) -> None:
        if not self._session.closed:
            self.wait()
