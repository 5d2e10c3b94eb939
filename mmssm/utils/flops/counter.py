"""Counting the FLOPs of a model's forward pass."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

# Registers what it defines.
import mmssm.utils.flops.operators  # noqa: F401
from mmssm.utils.flops.handlers import operator_flops
from mmssm.utils.flops.report import FlopReport


def count_flops(model: nn.Module, inputs: Mapping[str, Any]) -> FlopReport:
    """Count the FLOPs of one forward pass in evaluation mode.

    Args:
        model (nn.Module): The model, or a part of it.
        inputs (Mapping[str, Any]): Arguments of its ``forward`` by name; see
            :func:`example_inputs`.

    Returns:
        FlopReport: FLOPs per type of layer. What nobody knows how to count is
        in ``uncounted``.

    Raises:
        TypeError: If a module with ``ssm_flops`` gets no tensor as its first
            input.

    Example:
        >>> import torch
        >>> from mmssm.models import Vim
        >>> from mmssm.utils.flops import count_flops
        >>> model = Vim(dict(embed_dims=32, depth=2), img_size=64)
        >>> report = count_flops(model, dict(x=torch.zeros(1, 3, 64, 64)))
        >>> report.published_ssm
        509184
    """
    was_training = model.training
    model.eval()
    try:
        with FlopCounter(model) as counter, torch.no_grad():
            model(**inputs)
    finally:
        model.train(was_training)
    return counter.report


class FlopCounter(TorchDispatchMode):
    """Counts every operator that runs, for the innermost module around it.

    Args:
        model (nn.Module): The modules that are told apart.

    Attributes:
        report (FlopReport): The count so far.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self._running: list[nn.Module] = []
        self._handles: list[Any] = []
        modules = Counter(type(m).__name__ for m in model.modules())
        parameters = sum(p.numel() for p in model.parameters())
        self.report = FlopReport(parameters, modules)

    def __enter__(self) -> 'FlopCounter':
        for module in self._model.modules():
            self._handles += [
                module.register_forward_pre_hook(self._enter_module),
                module.register_forward_hook(
                    self._leave_module, always_call=True
                ),
            ]
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._running.clear()

    def _enter_module(self, module: nn.Module, args: tuple) -> None:
        self._running.append(module)
        if not hasattr(module, 'ssm_flops'):
            return
        if not args or not isinstance(args[0], Tensor):
            raise TypeError(
                f'`{type(module).__name__}` has `ssm_flops`; expected a '
                'tensor as its first positional input'
            )
        batch, *sizes, _ = args[0].shape
        published = batch * module.ssm_flops(*sizes)
        self.report.layer(type(module).__name__).published_ssm += published

    def _leave_module(self, module: nn.Module, *_: Any) -> None:
        self._running.pop()

    def __torch_dispatch__(
        self,
        op: OpOverload,
        types: tuple,
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        output = op(*args, **kwargs)
        name = op.name().partition('.')[0]
        counted = operator_flops(op, args, kwargs, output)
        if counted is None:
            self.report.uncounted[name] += 1
            return output
        kind, flops = counted
        innermost = self._running[-1] if self._running else self._model
        layer = self.report.layer(type(innermost).__name__)
        layer.flops[kind] += flops
        if any(hasattr(module, 'ssm_flops') for module in self._running):
            self.report.ssm_operators[name] += flops
        return output
