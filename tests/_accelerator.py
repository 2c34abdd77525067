"""A fake accelerator in Python: its tensors live on the CPU, say that they do not, and refuse to meet those that do."""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

#: For the whole process: whoever imports this has an accelerator from then on.
_setup_privateuseone_for_python_backend()

ACCELERATOR = torch.device("privateuseone:0")


class OnAccelerator(torch.Tensor):
    """A tensor of the fake accelerator."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=ACCELERATOR, requires_grad=False
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"OnAccelerator({self.inner})"

    def __deepcopy__(self, memo):
        return OnAccelerator(self.inner.clone())

    def __reduce_ex__(self, protocol):
        return self.inner.__reduce_ex__(protocol)  # what a file holds is read to the CPU first

    def tolist(self):
        return self.inner.tolist()

    def data_ptr(self):
        return self.inner.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


def run(function, args, kwargs):
    """Run an operation on the CPU, after the checks that a real device makes."""
    flat = tree_leaves((args, kwargs))
    ours = [value for value in flat if isinstance(value, OnAccelerator)]
    theirs = [value for value in flat if isinstance(value, torch.Tensor) and not isinstance(value, OnAccelerator)]
    device = kwargs.get("device")
    copies = function.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
    # A real device takes numbers from the CPU, and indices, and copies from one place to the other.
    strangers = [value for value in theirs if value.ndim > 0 and function.overloadpacket is not torch.ops.aten.index]
    if ours and strangers and not copies:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {ACCELERATOR} and cpu! "
            f"({function})"
        )
    if device is not None and torch.device(device).type == ACCELERATOR.type:
        kwargs = {**kwargs, "device": torch.device("cpu")}
        wrap = True
    elif function.overloadpacket is torch.ops.aten.copy_:
        wrap = isinstance(args[0], OnAccelerator)
    else:
        wrap = bool(ours) and device is None
    inner_args, inner_kwargs = tree_map(lambda v: v.inner if isinstance(v, OnAccelerator) else v, (args, kwargs))
    result = function(*inner_args, **inner_kwargs)
    if isinstance(result, torch.Tensor) and any(value.inner is result for value in ours):
        return next(value for value in ours if value.inner is result)  # an operation in place
    return tree_map(lambda v: OnAccelerator(v) if wrap and isinstance(v, torch.Tensor) else v, result)


class FakeAccelerator(TorchDispatchMode):
    """While it is entered, tensors can be made on, and moved to, the fake accelerator."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


class Literals(TorchFunctionMode):
    """``torch.tensor(..., device=)`` goes past the dispatcher: here it makes a tensor, then moves it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == ACCELERATOR:
            return function(*args, **{**kwargs, "device": "cpu"}).to(ACCELERATOR)
        return function(*args, **kwargs)


class CpuGenerator(torch.Generator):
    """Generators are made past every mode; this one takes the fake accelerator for the CPU."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")
