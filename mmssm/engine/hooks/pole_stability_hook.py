"""Warning before the recurrence of a model with poles diverges."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from torch import nn
from torch.utils.hooks import RemovableHandle

from mmssm.analysis.stability import (
    StabilityReport,
    find_pole_directions,
    measure_stability,
)
from mmssm.registry import HOOKS


@HOOKS.register_module()
class PoleStabilityHook(Hook):
    """Measure the stability of the pole scans of a model; warn of trouble.

    Poles inside the unit circle do not bound the direct form: short patterns
    of tokens can make it grow without limit. Every ``interval`` iterations of
    training, and on the first batch of every validation and test, this hook
    runs each scan once more on the tokens of the batch and measures what
    :class:`StabilityReport` lists. The log has the largest value over the
    layers as ``poles_max_output``, ``poles_max_radius``,
    ``poles_max_growth`` and ``poles_growth_share``; the visualizer's backends
    get those of every layer.

    Args:
        interval (int): Iterations between two measurements. Default: 500.
        max_output (float): Limit of ``|y|`` of the recurrence. Default: 1000.
        max_radius (float): Limit of the modulus of a token's pole. Default:
            0.999.
        max_growth (float): Limit of the growth per token of a repeated
            pattern; above 1 the recurrence diverges on it. Default: 1.0.
        num_patterns (int): Patterns of tokens drawn of each period of 2 to 6
            tokens, in every layer. Default: 64.
        seed (int): Of the drawing. Default: 0.

    Raises:
        ValueError: If ``interval`` or ``num_patterns`` is not positive.

    Source: Ours.
    """

    def __init__(
        self,
        interval: int = 500,
        max_output: float = 1e3,
        max_radius: float = 0.999,
        max_growth: float = 1.0,
        num_patterns: int = 64,
        seed: int = 0,
    ) -> None:
        for name, value in (
            ('interval', interval),
            ('num_patterns', num_patterns),
        ):
            if value < 1:
                raise ValueError(f'`{name}` is {value}; expected at least 1')
        self.interval, self.num_patterns = interval, num_patterns
        self.limits = dict(
            max_output=max_output,
            radius_max=max_radius,
            growth_max=max_growth,
        )
        self._generator = torch.Generator().manual_seed(seed)
        self._handles: list[RemovableHandle] = []
        self._reports: dict[str, StabilityReport] = {}

    def before_run(self, runner: Any) -> None:
        """Warn where there is nothing to measure."""
        self._handles = []
        if not find_pole_directions(_unwrap(runner.model)):
            runner.logger.warning(
                'PoleStabilityHook: the model has no layer with poles; '
                'nothing will be measured'
            )

    def _before_iter(
        self,
        runner: Any,
        batch_idx: int,
        data_batch: Any = None,
        mode: str = 'train',
    ) -> None:
        is_due = (
            self.every_n_train_iters(runner, self.interval)
            if mode == 'train'
            else batch_idx == 0
        )
        if not is_due:
            return
        self._reports = {}
        directions = find_pole_directions(_unwrap(runner.model))
        self._handles = [
            direction.register_forward_hook(partial(self._measure, name))
            for name, direction in directions.items()
        ]

    def _measure(
        self, name: str, direction: nn.Module, inputs: tuple, _: Any
    ) -> None:
        # Activation checkpointing runs layers a second time.
        if name not in self._reports:
            self._reports[name] = measure_stability(
                direction, inputs[0], self.num_patterns, self._generator
            )

    def _after_iter(
        self,
        runner: Any,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = 'train',
    ) -> None:
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if not self._reports:
            runner.logger.warning(
                f'PoleStabilityHook ({mode}): no layer with poles called its '
                'hooks, so nothing was measured; a compiled model does not '
                'call them'
            )
            return
        for name, value in summarize(self._reports).items():
            runner.message_hub.update_scalar(f'{mode}/poles_{name}', value)
        runner.visualizer.add_scalars(
            {
                f'poles_{mode}/{layer}/{name}': value
                for layer, report in self._reports.items()
                for name, value in vars(report).items()
                if value is not None
            },
            step=runner.iter + (mode == 'train'),
        )
        for message in find_trouble(self._reports, self.limits):
            runner.logger.warning(f'PoleStabilityHook ({mode}): {message}')


def _unwrap(model: nn.Module) -> nn.Module:
    while is_model_wrapper(model):
        model = model.module
    return model


def summarize(reports: Mapping[str, StabilityReport]) -> dict[str, float]:
    """Largest values over the layers.

    Args:
        reports (Mapping[str, StabilityReport]): By layer, at least one.

    Returns:
        dict[str, float]: ``max_output``, ``max_radius`` and, where a layer
        has them, ``max_growth`` and ``growth_share``; NaN where one is.
    """
    names = dict(
        max_output='max_output',
        max_radius='radius_max',
        max_growth='growth_max',
        growth_share='growth_share',
    )
    summary = {}
    for name, attribute in names.items():
        values = [getattr(report, attribute) for report in reports.values()]
        values = [value for value in values if value is not None]
        if values:
            largest = torch.tensor(values, dtype=torch.float64).amax()
            summary[name] = float(largest)
    return summary


def find_trouble(
    reports: Mapping[str, StabilityReport], limits: Mapping[str, float]
) -> list[str]:
    """Say which layers are beyond a limit.

    Args:
        reports (Mapping[str, StabilityReport]): By layer.
        limits (Mapping[str, float]): Limits of ``max_output``,
            ``radius_max`` and ``growth_max``.

    Returns:
        list[str]: One sentence per kind of trouble, with the number of layers
        and the worst of them; empty where all is well.
    """
    messages = []
    broken = [name for name, r in reports.items() if not r.is_finite()]
    if broken:
        messages.append(
            f'the recurrence or its poles are not finite in {len(broken)} of '
            f'{len(reports)} layers, first in {broken[0]}'
        )
    whole = {n: r for n, r in reports.items() if n not in broken}
    for attribute, text in (
        (
            'max_output',
            'the recurrence reaches |y| = {value:.3g} in {worst}, beyond the '
            'limit of {limit:g} in {count} of {total} layers',
        ),
        (
            'radius_max',
            'a pole has the modulus {value:.5f} in {worst}, beyond the limit '
            'of {limit:g} in {count} of {total} layers: it hardly decays',
        ),
        (
            'growth_max',
            'patterns of tokens make the recurrence grow when they are '
            'repeated: {value:.4f} times per token in {worst} ({share:.2%} '
            'of the patterns drawn there), beyond the limit of {limit:g} in '
            '{count} of {total} layers. Narrow the modulation (larger '
            "delta_min, smaller lambda_theta), or use realization='modal', "
            'which is bounded',
        ),
    ):
        beyond = {
            name: getattr(report, attribute)
            for name, report in whole.items()
            if getattr(report, attribute) is not None
            and getattr(report, attribute) > limits[attribute]
        }
        if beyond:
            worst = max(beyond, key=beyond.__getitem__)
            messages.append(
                text.format(
                    value=beyond[worst],
                    worst=worst,
                    limit=limits[attribute],
                    count=len(beyond),
                    total=len(reports),
                    share=whole[worst].growth_share or 0.0,
                )
            )
    return messages
