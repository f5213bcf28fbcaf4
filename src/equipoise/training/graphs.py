"""CUDA graphs: functions of fixed buffers, recorded once and replayed.

Small networks otherwise spend their time waiting for kernels to be launched. What a recorded function reads and writes
lies in buffers that stay where they are.
"""

from __future__ import annotations

__all__ = ["Graphs"]

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from equipoise.support.errors import warn


class Graphs:
    """Records functions of `buffers`, which they change; `possible` becomes False where one cannot be recorded."""

    def __init__(self, possible: bool, buffers: Sequence[Tensor]) -> None:
        self.possible, self.buffers = possible, buffers

    def captured(self, function: Callable[[], None]) -> Callable[[], None]:
        """The function, replayed from its second call on; as it is where nothing can be recorded."""
        if not self.possible:
            return function
        graph: torch.cuda.CUDAGraph | None = None

        def replay() -> None:
            nonlocal graph
            if graph is None and self.possible:
                graph = self._record(function)
            if graph is None:
                function()
            else:
                graph.replay()

        return replay

    def _record(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """One graph of a function, or None where it cannot be recorded."""
        saved = [b.clone() for b in self.buffers]

        def put_back() -> None:
            for buffer, value in zip(self.buffers, saved, strict=True):
                buffer.copy_(value)

        graph = torch.cuda.CUDAGraph()
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):  # what is set up on a first call is no part of the graph
                    function()
                    put_back()
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                function()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # A module of the user's own may do what no graph can hold: copy a constant to the device, say.
            self.possible = False
            warn(f"a step cannot be captured as a CUDA graph and runs slower: {str(error).splitlines()[0]}")
            return None
        finally:
            put_back()
        return graph
