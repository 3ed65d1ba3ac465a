"""experiments: the command line, the refine loop, the run store, figures and notebooks.

`from experiments import search, price, simulate, train, report` is the Python API (`experiments/api.py`); its functions
are imported where they are asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.api import price as price
    from experiments.api import report as report
    from experiments.api import search as search
    from experiments.api import simulate as simulate
    from experiments.api import train as train

__all__ = ["price", "report", "search", "simulate", "train"]


def __getattr__(name: str) -> Any:
    """A function of the API, the first time that it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("experiments.api"), name)
