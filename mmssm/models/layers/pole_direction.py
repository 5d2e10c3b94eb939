"""One direction of a scanning mixer, with token-conditioned poles."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmssm.ops import (
    causal_conv1d,
    modal_scan,
    pole_denominator,
    pole_scan,
    token_poles,
)

REALIZATIONS = ('direct', 'modal')
_MAX_RESIDUE = 4.0


class PoleDirection(nn.Module):
    """Depthwise convolution, low-rank numerator and pole scan (TCP-SSM).

    Every token ``c`` (after convolution and SiLU) sets where the poles of its
    groups lie and how the previous tokens drive them::

        phi = V^T c, alpha = W_alpha c, gamma = sigmoid(W_gamma c)
        eta_t = U (gamma_t * sum_i alpha_{t,i} phi_{t-i})
        y_t = eta_t - sum_i q_{t,i} y_{t-i}
        out_t = (y_t + D c_t) * silu(z_t)

    At the start the modulation is the identity: ``W_rho`` and ``W_theta`` are
    zero, and all tokens share the base poles.

    That is the direct form, the paper's operator. With
    ``realization='modal'`` the same poles are parallel modes with learned
    residues (:func:`mmssm.ops.modal_scan`): a different operator, equal to
    the direct form at the start (where no poles nearly coincide), that no
    sequence of tokens can make grow beyond a bound.

    Args:
        d_inner (int): Number of channels.
        d_conv (int): Kernel size of the convolution.
        num_reals (int): Real poles per group.
        num_pairs (int): Pairs of complex poles per group.
        rank (int): Rank of the numerator, r_f in the paper.
        num_groups (int): Groups of channels that share poles; divides
            ``d_inner``.
        group_modulation (bool): Whether each group has its own modulation, or
            all share one.
        fixed_poles (bool): Whether the tokens do not modulate the poles.
        eps (float): Margin of the base poles to the unit circle.
        delta_min (float): Offset of the radius scale.
        delta_0 (float): Normalisation of the radius scale, above
            ``delta_min``.
        lambda_theta (float): Bound of the angle modulation.
        realization (str): ``'direct'`` or ``'modal'``.
        reverse (bool): Whether tokens are scanned from the last to the first.
        backend (str, optional): Of the operators; None picks by device.

    Raises:
        ValueError: If a size or an option is out of its range.

    Source: TCP-SSM (arXiv 2605.11563), equations 5 to 14.
    """

    def __init__(
        self,
        d_inner: int,
        d_conv: int = 4,
        num_reals: int = 1,
        num_pairs: int = 2,
        rank: int = 22,
        num_groups: int = 12,
        group_modulation: bool = False,
        fixed_poles: bool = False,
        eps: float = 0.01,
        delta_min: float = 0.5,
        delta_0: float = 1.0,
        lambda_theta: float = 0.1,
        realization: str = 'direct',
        reverse: bool = False,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        if realization not in REALIZATIONS:
            raise ValueError(
                f'`realization` is {realization!r}; expected one of '
                f'{REALIZATIONS}'
            )
        _check(d_inner, num_groups, num_reals, num_pairs, delta_min, delta_0)
        self.rank, self.order = rank, num_reals + 2 * num_pairs
        self.num_modulations = num_groups if group_modulation else 1
        if fixed_poles:
            self.num_modulations = 0
        self.eps, self.delta_min = eps, delta_min
        self.delta_0, self.lambda_theta = delta_0, lambda_theta
        self.reverse, self.backend = reverse, backend
        # Holds weight and bias; the operator pads.
        self.conv1d = nn.Conv1d(d_inner, d_inner, d_conv, groups=d_inner)
        # Rows of phi, alpha, gamma, then of the radius and angle modulation.
        self.x_proj = nn.Linear(d_inner, sum(self._sizes()), bias=False)
        self.up_proj = nn.Linear(rank, d_inner, bias=False)
        self.rho_hat = nn.Parameter(torch.empty(num_groups, num_pairs))
        self.theta_hat = nn.Parameter(torch.empty(num_groups, num_pairs))
        self.real_rho_hat = nn.Parameter(torch.empty(num_groups, num_reals))
        self.sign_hat = nn.Parameter(torch.empty(num_groups, num_reals))
        if not fixed_poles:
            self.rho_bias = nn.Parameter(torch.empty(self.num_modulations))
            self.theta_bias = nn.Parameter(torch.empty(self.num_modulations))
        self.realization = realization
        if realization == 'modal':
            self.residues = nn.Parameter(torch.empty(num_groups, self.order))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.reset_parameters()

    def _sizes(self) -> tuple[int, ...]:
        modulations = 2 * (self.num_modulations,)
        return (self.rank, self.order, self.rank, *modulations)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Spread the poles; start with the identity as modulation."""
        d_inner = self.x_proj.in_features
        nn.init.uniform_(self.x_proj.weight, -(d_inner**-0.5), d_inner**-0.5)
        self.x_proj.weight[self._sizes()[0] * 2 + self.order :].zero_()
        # Uniform with standard deviation 0.5 / sqrt(rank).
        bound = math.sqrt(3) * 0.5 * self.rank**-0.5
        nn.init.uniform_(self.up_proj.weight, -bound, bound)
        for radius in (self.rho_hat, self.real_rho_hat):
            start = torch.empty_like(radius).uniform_(0.5, 0.9)
            radius.copy_(torch.logit(start / (1 - self.eps)))
        pairs = self.theta_hat.shape[1]
        slots = torch.arange(pairs) + 0.5
        jitter = torch.empty_like(self.theta_hat).uniform_(-0.3, 0.3)
        self.theta_hat.copy_(torch.logit((slots + jitter) / max(pairs, 1)))
        signs = torch.ones_like(self.sign_hat)
        signs[:, 1::2] = -1
        # Groups alternate too, so that one real pole comes in both signs.
        signs[1::2] *= -1
        self.sign_hat.copy_(1.5 * signs)
        if self.num_modulations:
            # softplus of the bias makes the radius scale 1.
            self.rho_bias.fill_(math.log(math.expm1(self._softplus_at_one())))
            self.theta_bias.zero_()
        if self.realization == 'modal':
            # Poles that nearly coincide would have huge residues.
            residues = self._residues_of_direct_form()
            self.residues.copy_(residues.clamp(-_MAX_RESIDUE, _MAX_RESIDUE))

    def ssm_flops(self, length: int) -> int:
        """FLOPs of a scan of ``length`` tokens as the paper counts them.

        Per token: projections, one FLOP per weight; recurrence, one per
        channel and pole; skip; per group the poles and their expansion;
        modulation. For ``realization='modal'``, which is not the paper's,
        each weight of a mode is counted once, and nothing is expanded.

        Source: TCP-SSM (arXiv 2605.11563); the rule is inferred from its
        printed figures, which fix 65 per group for 1 real pole and 2 pairs.
        """
        d_inner, order = self.D.numel(), self.order
        groups, pairs = self.rho_hat.shape
        reals = order - 2 * pairs
        if self.realization == 'direct':
            recurrence = order
            expansion = order * (2 * reals + 3 * pairs)
        else:
            recurrence = reals + 4 * pairs + order
            expansion = 0
        modulations = self.num_modulations
        drive = order + 3 * self.rank + 2 * modulations
        per_token = d_inner * (drive + recurrence + 1) + order * self.rank
        if modulations:
            per_token += groups * (3 * reals + 11 * pairs + expansion)
            per_token += modulations
        return length * per_token

    def _softplus_at_one(self) -> float:
        return self.delta_0 - self.delta_min

    def _residues_of_direct_form(self) -> Tensor:
        """Partial fractions of the base denominator's inverse."""
        base = (t.double() for t in self._base_poles())
        real, rho, theta = (t[0, 0] for t in token_poles(*base, eps=self.eps))
        upper = torch.polar(rho, theta)
        poles = torch.cat((real + 0j, upper, upper.conj()), dim=-1)
        ratios = 1 - poles.unsqueeze(-2) / poles.unsqueeze(-1)
        ratios.diagonal(dim1=-2, dim2=-1).fill_(1)
        residues = 1 / ratios.prod(-1)
        reals, pairs = real.shape[1], rho.shape[1]
        first, pair, _ = residues.split((reals, pairs, pairs), dim=-1)
        # A pair adds 2 Re(residue * mode).
        parts = (first.real, 2 * pair.real, -2 * pair.imag)
        return torch.cat(parts, dim=-1)

    def _base_poles(self) -> tuple[Tensor, ...]:
        return (
            self.rho_hat,
            self.theta_hat,
            self.real_rho_hat,
            self.sign_hat,
        )

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Scan tokens and gate the result.

        Args:
            x (Tensor): Inputs ``(batch, length, d_inner)``.
            z (Tensor): Gate, like ``x``.

        Returns:
            Tensor: Like ``x``.
        """
        c = self.convolve(x)
        eta, *modulation = self.drive(c)
        options = dict(
            x=c, D=self.D, z=z, reverse=self.reverse, backend=self.backend
        )
        if self.realization == 'direct':
            return pole_scan(eta, self.denominator(*modulation), **options)
        real, rho, theta = self.poles(*modulation)
        return modal_scan(
            eta,
            real,
            rho * torch.cos(theta),
            rho * torch.sin(theta),
            self.residues,
            **options,
        )

    def convolve(self, x: Tensor) -> Tensor:
        """Tokens after convolution and SiLU, like ``x``."""
        y = causal_conv1d(
            x.mT,
            self.conv1d.weight.squeeze(1),
            self.conv1d.bias,
            activation='silu',
            reverse=self.reverse,
            backend=self.backend,
        )
        return y.mT

    def drive(self, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read drive and modulation from the tokens.

        Args:
            c (Tensor): ``(batch, length, d_inner)``.

        Returns:
            tuple[Tensor, Tensor, Tensor]: eta, like ``c``, and the modulation
            of radii and angles without bias,
            ``(batch, length, num_modulations)``.
        """
        phi, alpha, gamma, *mods = self.x_proj(c).split(self._sizes(), -1)
        psi = self._mix_past(phi, alpha)
        return self.up_proj(torch.sigmoid(gamma) * psi), *mods

    def _mix_past(self, phi: Tensor, alpha: Tensor) -> Tensor:
        """Blend the previous tokens: sum_i alpha_i phi_{t-i}."""
        length, order = phi.shape[1], self.order
        psi = None
        padding = (0, order) if self.reverse else (order, 0)
        padded = F.pad(phi, (0, 0, *padding))
        for i in range(1, order + 1):
            start = i if self.reverse else order - i
            past = padded.narrow(1, start, length)
            term = alpha[..., i - 1 : i] * past
            psi = term if psi is None else psi + term
        return psi

    def denominator(self, rho_mod: Tensor, theta_mod: Tensor) -> Tensor:
        """Coefficients of the tokens from their modulation.

        Args:
            rho_mod (Tensor): As returned by :meth:`drive`.
            theta_mod (Tensor): The same for the angles.

        Returns:
            Tensor: ``(batch, length, groups, order)``.
        """
        arguments, options = self._pole_arguments(rho_mod, theta_mod)
        q = pole_denominator(*arguments, **options, backend=self.backend)
        return q.expand(*rho_mod.shape[:2], -1, -1)

    def poles(
        self, rho_mod: Tensor, theta_mod: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Poles of the tokens from their modulation.

        Args:
            rho_mod (Tensor): As returned by :meth:`drive`.
            theta_mod (Tensor): The same for the angles.

        Returns:
            tuple: Real poles ``(batch, length, groups, reals)``; radii and
            angles of the pairs ``(batch, length, groups, pairs)``.
        """
        arguments, options = self._pole_arguments(rho_mod, theta_mod)
        return tuple(
            pole.expand(*rho_mod.shape[:2], -1, -1)
            for pole in token_poles(*arguments, **options)
        )

    def _pole_arguments(
        self, rho_mod: Tensor, theta_mod: Tensor
    ) -> tuple[tuple[Tensor, ...], dict[str, float]]:
        options = dict(
            eps=self.eps,
            delta_min=self.delta_min,
            delta_0=self.delta_0,
            lambda_theta=self.lambda_theta,
        )
        if not self.num_modulations:
            return self._base_poles(), options
        modulation = (rho_mod + self.rho_bias, theta_mod + self.theta_bias)
        return (*self._base_poles(), *modulation), options


def _check(
    d_inner: int,
    num_groups: int,
    num_reals: int,
    num_pairs: int,
    delta_min: float,
    delta_0: float,
) -> None:
    if num_groups < 1 or d_inner % num_groups:
        raise ValueError(
            f'`num_groups` = {num_groups}; expected a divisor of d_inner = '
            f'{d_inner}'
        )
    if num_reals < 0 or num_pairs < 0 or num_reals + num_pairs < 1:
        raise ValueError(
            f'`num_reals` = {num_reals} and `num_pairs` = {num_pairs}; '
            'expected at least one pole'
        )
    if not 0 <= delta_min < delta_0:
        raise ValueError(
            f'`delta_min` = {delta_min}; expected 0 <= delta_min < delta_0 = '
            f'{delta_0}, or the modulation cannot start as the identity'
        )
