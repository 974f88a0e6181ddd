"""Checkpoints that a training job can be suspended to at any step, and resumed from bit for bit.

For PyTorch: ``import libckpt.torch``. This module itself imports neither torch nor numpy.
"""

from __future__ import annotations

from ._errors import Error, NotExpressible

__version__ = "0.1.0"

#: A rank that was told to stop leaves with this exit code.
EXIT_SUSPENDED = 75

__all__ = ["EXIT_SUSPENDED", "Error", "NotExpressible", "__version__"]
