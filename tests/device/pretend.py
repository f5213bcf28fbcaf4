"""A pretended GPU: device mistakes fail on a machine that has none.

`with pretended_gpu():` makes `device="cuda"` mean tensors that say they are on `cuda:0` and hold their values on the
CPU. Every operation is seen by a dispatch mode, which unwraps its arguments, runs it on the CPU and wraps the result,
and which raises where a GPU would:

- tensors of both devices in one operation. As on a GPU, a CPU tensor without dimensions may stand beside GPU tensors
  in an element-wise operation, CPU indices may index a GPU tensor (not the reverse), and copies go anywhere;
- `.numpy()` of a GPU tensor, a generator of the other device, pinning what is not on the CPU, products of matrices of
  whole numbers;
- inside a CUDA graph: looks from the host (`.item()`, boolean masks, copies to the CPU), copies from memory that is
  not pinned, and generators that the graph does not know.

The global generator of the pretended GPU is another one than the CPU's, and `torch.manual_seed` seeds both, as it does
on a GPU. A generator with a seed gives the numbers that a CPU generator gives, so that results can be compared with
those of the CPU to the last bit or nearly so. A captured graph is a list of operations: a replay runs them again on
the same buffers, whatever Python has done to its variables since.

What it cannot show: speed, memory, streams that race, and kernels that compute something else.
"""

from __future__ import annotations

__all__ = ["Counts", "OnGpu", "pretended_gpu"]

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # dispatch modes import it when they are entered; it looks at torch.cuda, so it goes first
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
GPU = torch.device("cuda", 0)
#: What stands for the GPU inside torch: a kind of device that every build knows, that nothing here uses, and whose
#: backward pass runs in the caller's thread. Only the attribute `device` says "cuda".
HIDDEN = torch.device("lazy", 0)

#: Copies, which may cross from one device to the other.
COPIES = {aten._to_copy, aten.copy_, aten.copy}
#: Indices may lie on the CPU whatever the tensor that is indexed.
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
#: Not tagged as element-wise, but a value without dimensions may be on the CPU.
FILLING = {aten.masked_fill, aten.masked_fill_, aten.fill, aten.fill_, aten.index_fill, aten.index_fill_}
#: A GPU multiplies no matrices of whole numbers.
PRODUCTS = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.mv, aten.dot}
#: The host has to wait for their result.
SYNCHRONISING = {aten._local_scalar_dense, aten.nonzero, aten.is_nonzero, aten.equal, aten.masked_select, aten._unique2}


class OnGpu(Tensor):
    """A tensor that says it is on the GPU; its values are in `inner`, on the CPU."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnGpu:
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=HIDDEN,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, Counts())

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it first.")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> OnGpu:
        with torch.no_grad():
            twin = memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return twin

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OnGpu({self.inner!r})"


class _Generator(torch.Generator):
    """A generator that remembers for which device it was made. Its numbers are the CPU's."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        made = super().__new__(cls)
        made.said = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.said


@dataclasses.dataclass
class Counts:
    """What a GPU would have waited for: looks from the host, and copies in either direction."""

    looks: int = 0
    to_host: int = 0
    to_device: int = 0
    #: Of the copies to the device, those of more than a number from memory that is not pinned.
    unpinned: int = 0
    replays: int = 0


class _Mode(TorchDispatchMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, self.counts)


def _hidden(value: Any) -> Any:
    named = isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda"))
    return HIDDEN if named and torch.device(value).type == "cuda" else value


class _Names(TorchFunctionMode):
    """Wherever a function is given the device "cuda", it gets the hidden one; and its generator is remembered."""

    #: The generator of the call that is under way, whose class is lost on the way through torch.
    generator: _Generator | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))

        args = tuple([_hidden(v) for v in args])
        kwargs = {name: _hidden(v) for name, v in (kwargs or {}).items()}
        if func is Tensor.cuda:
            return args[0].to(HIDDEN)
        before, _Names.generator = _Names.generator, kwargs.get("generator", _Names.generator)
        try:
            return func(*args, **kwargs)
        finally:
            _Names.generator = before


@contextlib.contextmanager
def pretended_gpu() -> Iterator[Counts]:
    """Make `device="cuda"` usable in this block; yields the counts of what a GPU would have waited for."""
    lifted = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device="cuda") is made on the CPU and then copied
    counts, stream = Counts(), _Generator("cuda").manual_seed(0)

    def state(device: Any = "cuda") -> Tensor:
        return stream.get_state()

    def set_state(value: Tensor, device: Any = "cuda") -> None:
        stream.set_state(value)

    def seed(number: int) -> None:
        stream.manual_seed(number)

    fakes = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "device": contextlib.nullcontext,
        "get_device_name": lambda device=None: "a pretended GPU",
        "get_device_properties": lambda device=None: SimpleNamespace(uuid="0-1-2"),
        "mem_get_info": lambda device=None: (1 << 34, 1 << 34),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "synchronize": lambda device=None: None,
        "default_generators": (stream,),
        "get_rng_state": state,
        "set_rng_state": set_state,
        "get_rng_state_all": lambda: [state()],
        "set_rng_state_all": lambda states: set_state(states[0]),
        "manual_seed": seed,
        "manual_seed_all": seed,
        "Event": mock.MagicMock,
        "Stream": mock.MagicMock,
        "current_stream": lambda device=None: mock.MagicMock(),
        "stream": lambda stream: contextlib.nullcontext(),
        "CUDAGraph": _Graph,
        "graph": _capturing,
    }
    with contextlib.ExitStack() as block:
        block.callback(torch._C._set_only_lift_cpu_tensors, lifted)
        for name, fake in fakes.items():
            block.enter_context(mock.patch.object(torch.cuda, name, fake))
        block.enter_context(mock.patch.object(torch, "Generator", _Generator))
        block.enter_context(mock.patch.object(_Graph, "counts", counts))
        block.enter_context(_Mode(counts))
        block.enter_context(_Names())
        yield counts


# --- one operation ---------------------------------------------------------------------------------------------------


def _run(func: Any, args: Any, kwargs: dict[str, Any], counts: Counts) -> Any:
    tensors = _tensors((args, tuple(kwargs.values())))
    gpu, cpu = [t for t in tensors if isinstance(t, OnGpu)], [t for t in tensors if not isinstance(t, OnGpu)]
    packet, writes, drawing = _traits(func)
    device = _result_device(packet, args, kwargs, bool(gpu))
    written = [args[i] if i < len(args) else kwargs[name] for i, name in writes if i < len(args) or name in kwargs]
    if gpu and cpu:
        _refuse_mixture(func, args, cpu, written)
    if packet in (aten.is_pinned, aten._pin_memory):
        return _pinned(packet, args[0])
    pinned = kwargs.pop("pin_memory", False)
    if pinned and device == "cuda":
        raise RuntimeError("Only dense CPU tensors can be pinned")
    generator = _Names.generator if drawing else None
    if generator is not None and generator.device.type != device:
        raise RuntimeError(f"Expected a '{device}' device type for generator but found '{generator.device.type}'")
    if packet in PRODUCTS and gpu and not gpu[0].is_floating_point():
        raise NotImplementedError(f"{packet} of whole numbers is not implemented on a GPU")
    _count(packet, args, device, bool(gpu), counts)
    graph = _Graph.open if device == "cuda" else None
    if graph is not None and generator is not None:
        raise RuntimeError("a generator of one's own has to be registered with a graph before it is captured")
    real_kwargs = {name: _mapped(value, _inside) for name, value in kwargs.items()}
    call = _Call(func, _mapped(args, _inside), real_kwargs, drawing and generator is None and device == "cuda")
    if graph is not None:
        graph.before(call, [t.inner for t in written])
    out = call()
    if graph is not None:
        graph.after(call, out)
    for tensor in written:
        if isinstance(tensor, OnGpu) and tensor.inner.shape != tensor.shape:
            raise NotImplementedError(f"{func} changes the shape of its argument, which is not pretended here")
    if device != "cuda":
        if pinned:
            out.pretended_pinned = True
        return out
    same = {id(t.inner): t for t in written}
    return _mapped(out, lambda v: same[id(v)] if id(v) in same else OnGpu(v) if isinstance(v, Tensor) else v)


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """The function of everything in nested tuples and lists."""
    if isinstance(value, tuple | list):
        return type(value)([_mapped(v, function) for v in value])
    return function(value)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, tuple | list):
        return [t for v in value for t in _tensors(v)]
    return [value] if isinstance(value, Tensor) else []


def _inside(value: Any) -> Any:
    if isinstance(value, OnGpu):
        return value.inner
    return torch.device("cpu") if isinstance(value, torch.device) else value


@functools.cache
def _traits(func: Any) -> tuple[Any, list[tuple[int, str]], bool]:
    """What an operation is an overload of, which arguments it changes in place, and whether it draws at random."""
    arguments = enumerate(func._schema.arguments)
    writes = [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]
    return func.overloadpacket, writes, torch.Tag.nondeterministic_seeded in func.tags


def _result_device(packet: Any, args: Any, kwargs: dict[str, Any], any_gpu: bool) -> str:
    if packet is aten.copy_:
        return args[0].device.type
    wanted = kwargs.get("device")
    return "cuda" if (any_gpu if wanted is None else wanted.type == HIDDEN.type) else "cpu"


def _refuse_mixture(func: Any, args: Any, cpu: list[Tensor], written: list[Tensor]) -> None:
    packet = func.overloadpacket
    if packet in COPIES:
        return
    if packet in INDEXING:
        values = args[2] if len(args) > 2 else None
        if isinstance(args[0], OnGpu) and (values is None or isinstance(values, OnGpu) or values.ndim == 0):
            return
        if not isinstance(args[0], OnGpu) and (values is None or not isinstance(values, OnGpu)):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    scalars = all(v.ndim == 0 for v in cpu) and not any(v is w for v in cpu for w in written)
    if scalars and (torch.Tag.pointwise in func.tags or packet in FILLING):
        return
    raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got both cuda:0 and cpu")


def _pinned(packet: Any, tensor: Tensor) -> Any:
    """Pinned memory carries a mark; nothing else is different about it here."""
    if packet is aten.is_pinned:
        return getattr(tensor, "pretended_pinned", False)
    if isinstance(tensor, OnGpu):
        raise RuntimeError("cannot pin a cuda tensor, only dense CPU tensors can be pinned")
    twin = tensor.clone()
    twin.pretended_pinned = True
    return twin


def _count(packet: Any, args: Any, device: str, any_gpu: bool, counts: Counts) -> None:
    """Count what the host would wait for, and refuse it while a graph is captured."""
    masks = packet in INDEXING and any(v is not None and v.dtype in (torch.bool, torch.uint8) for v in args[1])
    look = any_gpu and (packet in SYNCHRONISING or masks)
    source = args[1] if packet is aten.copy_ else args[0] if packet in COPIES else None
    to_host = isinstance(source, OnGpu) and device == "cpu"
    to_device = isinstance(source, Tensor) and not isinstance(source, OnGpu) and device == "cuda"
    counts.looks += look
    counts.to_host += to_host
    counts.to_device += to_device
    unpinned = to_device and source.ndim > 0 and not getattr(source, "pretended_pinned", False)  # type: ignore[union-attr]
    counts.unpinned += bool(unpinned)
    if _Graph.open is not None and (look or to_host or unpinned):
        raise RuntimeError(f"{packet}: operation not permitted when stream is capturing")


@contextlib.contextmanager
def _global_stream() -> Iterator[None]:
    """What draws from the global generator draws from the GPU's."""
    (gpu,), cpu = torch.cuda.default_generators, torch.default_generator
    before = cpu.get_state()
    cpu.set_state(gpu.get_state())
    yield
    gpu.set_state(cpu.get_state())
    cpu.set_state(before)


# --- graphs ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Call:
    """One operation on real tensors, and whether it draws from the GPU's global generator."""

    func: Any
    args: Any
    kwargs: dict[str, Any]
    stream: bool
    out: Any = None

    def __call__(self) -> Any:
        with _global_stream() if self.stream else contextlib.nullcontext():
            return self.func(*self.args, **self.kwargs)

    def again(self) -> None:
        """Repeat the operation and put its results where they were the first time."""
        returns, changes = self.func._schema.returns, bool(_traits(self.func)[1])
        if returns and all(r.alias_info is not None for r in returns) and not changes:
            return  # a view of what is there already
        fresh = self()
        if not changes:
            for old, new in zip(_tensors(self.out), _tensors(fresh), strict=True):
                old.copy_(new)


class _Graph:
    """A captured graph. Capturing leaves all buffers as they were; a replay repeats every operation on them."""

    open: _Graph | None = None
    counts: Counts | None = None

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.born: set[int] = set()  # storages that were made inside the graph
        self.saved: dict[int, tuple[Any, Any]] = {}

    def before(self, call: _Call, written: list[Tensor]) -> None:
        for tensor in written:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.born:
                self.saved.setdefault(storage.data_ptr(), (storage, storage.clone()))
        self.calls.append(call)

    def after(self, call: _Call, out: Any) -> None:
        call.out = out
        self.born |= _storages(out) - _storages((call.args, tuple(call.kwargs.values())))

    def replay(self) -> None:
        if _Graph.counts is not None:
            _Graph.counts.replays += 1
        for call in self.calls:
            call.again()


def _storages(values: Any) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in _tensors(values)}


@contextlib.contextmanager
def _capturing(graph: _Graph) -> Iterator[None]:
    _Graph.open = graph
    try:
        yield
    finally:
        _Graph.open = None
        for storage, value in graph.saved.values():
            storage.copy_(value)
