"""FLOPs per type of layer, and their table."""

from collections import Counter
from dataclasses import dataclass, field

KINDS = ('dense', 'operators', 'elementwise')


@dataclass
class LayerFlops:
    """FLOPs of all modules of one type, without those inside them.

    Attributes:
        flops (Counter): FLOPs by kind: ``'dense'`` (linear layers and
            convolutions), ``'operators'`` (of mmssm), ``'elementwise'`` (all
            the rest).
        published_ssm (int): What the papers count as FLOPs of their scans.
    """

    flops: Counter = field(default_factory=Counter)
    published_ssm: int = 0

    @property
    def total(self) -> int:
        """FLOPs of all kinds."""
        return sum(self.flops.values())


@dataclass
class FlopReport:
    """FLOPs of a forward pass.

    Attributes:
        parameters (int): Number of parameters of the model.
        modules (Counter): Number of modules of each type.
        layers (dict[str, LayerFlops]): By type of module.
        ssm_operators (Counter): FLOPs inside the modules that scan, by
            operator.
        uncounted (Counter): Operators nobody says how to count, with the
            number of calls.
    """

    parameters: int
    modules: Counter
    layers: dict[str, LayerFlops] = field(default_factory=dict)
    ssm_operators: Counter = field(default_factory=Counter)
    uncounted: Counter = field(default_factory=Counter)

    def layer(self, name: str) -> LayerFlops:
        """Entry of a type of module."""
        return self.layers.setdefault(name, LayerFlops())

    @property
    def total(self) -> int:
        """FLOPs of the model."""
        return sum(layer.total for layer in self.layers.values())

    @property
    def published_ssm(self) -> int:
        """FLOPs of the scans by the rule of the papers."""
        return sum(layer.published_ssm for layer in self.layers.values())

    @property
    def counted_ssm(self) -> int:
        """FLOPs counted inside the modules that scan."""
        return sum(self.ssm_operators.values())


def format_report(report: FlopReport) -> str:
    """Write a report as tables of text."""
    layers = [
        (name, layer)
        for name, layer in report.layers.items()
        if layer.total or layer.published_ssm
    ]
    layers.sort(key=lambda item: -item[1].total)
    head = ['layer', 'modules', *KINDS, 'total', 'SSM (papers)']
    rows = [
        [
            name,
            str(report.modules[name]),
            *(_millions(layer.flops[kind]) for kind in KINDS),
            _millions(layer.total),
            _millions(layer.published_ssm),
        ]
        for name, layer in layers
    ]
    totals = [
        _millions(sum(layer.flops[kind] for _, layer in layers))
        for kind in KINDS
    ]
    rows.append(
        [
            'all',
            '',
            *totals,
            _millions(report.total),
            _millions(report.published_ssm),
        ]
    )
    parts = ['FLOPs in millions; a multiply-add is 2.', _table(head, rows)]
    if report.counted_ssm:
        inside = [
            [name, _millions(flops)]
            for name, flops in report.ssm_operators.most_common()
            if flops
        ]
        inside.append(['all', _millions(report.counted_ssm)])
        parts += ['Counted inside the modules that scan:']
        parts += [_table(['operator', 'FLOPs'], inside)]
    parts.append(_summary(report))
    return '\n\n'.join(parts)


def _summary(report: FlopReport) -> str:
    lines = [
        f'parameters:            {report.parameters:,}',
        f'FLOPs, counted:        {_millions(report.total)} M',
    ]
    if report.published_ssm:
        lines += [
            f'SSM FLOPs, counted:    {_millions(report.counted_ssm)} M',
            f'SSM FLOPs, the papers: {_millions(report.published_ssm)} M',
        ]
    else:
        lines.append('no layer says what the papers count as its SSM FLOPs')
    if report.uncounted:
        calls = ', '.join(
            f'{name} ({number} calls)'
            for name, number in sorted(report.uncounted.items())
        )
        lines.append(f'NOT COUNTED: {calls}')
    else:
        lines.append('every operator was counted')
    return '\n'.join(lines)


def _millions(flops: int) -> str:
    return f'{flops / 1e6:,.3f}'


def _table(head: list[str], rows: list[list[str]]) -> str:
    widths = [
        max(map(len, column)) for column in zip(head, *rows, strict=True)
    ]
    lines = []
    for row in [head, ['-' * width for width in widths], *rows]:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1])]
        cells += [cell.rjust(width) for cell, width in others]
        lines.append('  '.join(cells))
    return '\n'.join(lines)
