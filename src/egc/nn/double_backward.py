"""Layers that are differentiated twice, made cheap: convolution, norm + SiLU, SiLU, attention.

The exact objective goes back through a backward pass. PyTorch can do that to any layer, but at a
price. The second derivative of a convolution runs as convolutions with permuted axes, for which
there are no fast kernels; those of GroupNorm, SiLU and softmax fall into dozens of element-wise
passes over memory. They are written out here, as an autograd function for the layer whose
backward is an autograd function of its own:

    layer        y  = L(x)            forward
    input grad   gx = L'(x)^T gy      backward; itself differentiable in gy, x and the weights

Convolution.  gx = W^T * gy is linear in gy and W, so for a cotangent v of gx

    d<v, gx>/d gy = W * v              a forward convolution
    d<v, gx>/d W  = weight gradient of (input v, output gradient gy)

GroupNorm + SiLU.  With xhat = (x - mean) / s over a group of N values, n = w xhat + b,
y = silu(n), g = w silu'(n) gy, and the projection P v = v - mean(v) - xhat mean(v xhat),

    gx = P g / s,    u = P v / s,    L = <v, gx> = <u, g>
    d L / d gy   = u w silu'(n)
    d L / d n    = u w gy silu''(n) = a
    d L / d xhat = a w - (v mean(g xhat) + g mean(v xhat)) / s
    d L / d s    = -L / s,   with ds/dx = xhat / N

SiLU alone is the same without the norm: gx = silu'(x) gy, d/d gy = v silu'(x), d/d x = v gy
silu''(x).

Attention.  S = scale q k^T, P = softmax(S), o = P v, and gP = go v^T, with row sums a and D,

    gS = P (gP - D),  D = sum P gP;     gq = scale gS k,  gk = scale gS^T q,  gv = P^T go
    for cotangents uq, uk, uv:   A = scale (uq k^T + q uk^T),  a = sum P A,  B = P (A - a)
    d/d go = B v + P uv,    d/d v = B^T go
    d/d S  = P (W - sum P W),  W = (A - a) (gP - D) + go uv^T
    d/d q  = scale (gS uk + dS k),   d/d k = scale (gS^T uq + dS^T q)

Nothing changes in a forward pass that is not under `double_backward`: the layers are then
PyTorch's own, fused kernels and all. Inside it, `input_gradient_only` marks the one backward pass
that wants no gradients of weights (PyTorch does not tell an autograd function so).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

_double: ContextVar[bool] = ContextVar("double_backward", default=False)
# Backward passes may run on a thread of autograd's own, which context variables do not reach.
_input_only = False

aten = torch.ops.aten


@contextmanager
def double_backward() -> Iterator[None]:
    """For a forward pass whose gradient will be differentiated again."""
    token = _double.set(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            yield
    finally:
        _double.reset(token)


@contextmanager
def input_gradient_only() -> Iterator[None]:
    """For the backward pass that gives the score: gradients of weights are not wanted in it."""
    global _input_only
    _input_only = True
    try:
        yield
    finally:
        _input_only = False


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` (zero padding, no groups, no dilation) with a fast second derivative."""

    def forward(self, x: Tensor) -> Tensor:
        if _fast_path(x):
            return _Conv.apply(x, self.weight, self.bias, self.stride, self.padding)
        return super().forward(x)


class NormSiLU(nn.GroupNorm):
    """GroupNorm and SiLU in one, with a cheap second derivative."""

    def forward(self, x: Tensor) -> Tensor:
        if _fast_path(x):
            return _NormSiLU.apply(x, self.weight, self.bias, self.num_groups, self.eps)
        return F.silu(super().forward(x))


class SiLU(nn.SiLU):
    """SiLU with a cheap second derivative."""

    def forward(self, x: Tensor) -> Tensor:
        return _SiLU.apply(x) if _fast_path(x) else super().forward(x)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(width)) v over (..., tokens, width)."""
    # The fused kernel is only taken for tensors whose last axis is contiguous.
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    if _fast_path(q):
        return _Attention.apply(q, k, v)
    return F.scaled_dot_product_attention(q, k, v)


def _fast_path(x: Tensor) -> bool:
    """Under autocast PyTorch's own layers are used, which know how to mix precisions."""
    return _double.get() and not torch.is_autocast_enabled(x.device.type)


def recomputed(module: nn.Module, *inputs: Tensor | None) -> Tensor:
    """Activation checkpointing that remembers whether the pass is under `double_backward`."""
    double = _double.get()

    def run(*inputs: Tensor | None) -> Tensor:
        with double_backward() if double else nullcontext():
            return module(*inputs)

    return checkpoint(run, *inputs, use_reentrant=False)


def _conv_backward(gy: Tensor, x: Tensor, weight: Tensor, where: Any, mask: list[bool]) -> Any:
    stride, padding = where
    return aten.convolution_backward(
        gy, x, weight, [weight.shape[0]], stride, padding, (1, 1), False, (0, 0), 1, mask
    )


class _Conv(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: Any, padding: Any
    ) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.where = (stride, padding)
        return F.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if _input_only:
            gx = _ConvInputGrad.apply(gy, x.detach(), weight, ctx.where)
            return gx, None, None, None, None
        mask = list(ctx.needs_input_grad[:3])
        return (*_conv_backward(gy, x, weight, ctx.where, mask), None, None)


class _ConvInputGrad(Function):
    """gx = W^T * gy. It does not depend on x, which only lends its shape."""

    @staticmethod
    def forward(ctx: Any, gy: Tensor, x: Tensor, weight: Tensor, where: Any) -> Any:
        ctx.save_for_backward(gy, weight)
        ctx.where = where
        return _conv_backward(gy, x, weight, where, [True, False, False])[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> Any:
        gy, weight = ctx.saved_tensors
        stride, padding = ctx.where
        d_gy = F.conv2d(v, weight, None, stride, padding)
        d_weight = _conv_backward(gy, v, weight, ctx.where, [False, True, False])[1]
        return d_gy, None, d_weight, None


class _NormSiLU(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Any:
        b, c, h, w = x.shape
        x = x.contiguous(memory_format=_layout(x))
        n, mean, rstd = aten.native_group_norm(x, weight, bias, b, c, h * w, groups, eps)
        ctx.save_for_backward(x, weight, bias, n, mean, rstd)
        ctx.groups, ctx.eps = groups, eps
        return F.silu(n)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight, bias, n, mean, rstd = ctx.saved_tensors
        if _input_only:
            gx = _NormSiLUInputGrad.apply(gy, x, weight, bias, n, mean, rstd, ctx.groups)
            return gx, None, None, None, None
        if torch.is_grad_enabled():  # someone else differentiates this again: leave it to PyTorch
            y = F.silu(F.group_norm(x, ctx.groups, weight, bias, ctx.eps))
            return (*torch.autograd.grad(y, (x, weight, bias), gy, create_graph=True), None, None)
        gn = aten.silu_backward(gy, n)
        mask = list(ctx.needs_input_grad[:3])
        return (*_norm_backward(gn, x, mean, rstd, weight, ctx.groups, mask), None, None)


def _layout(x: Tensor) -> torch.memory_format:
    """Whether the channels of a map come last in memory, or the positions."""
    last = torch.channels_last
    return last if x.is_contiguous(memory_format=last) else torch.contiguous_format


def _norm_backward(
    gn: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    groups: int,
    mask: list[bool],
) -> Any:
    b, c, h, w = x.shape
    gn = gn.contiguous(memory_format=_layout(x))  # the kernel takes that for granted
    return aten.native_group_norm_backward(gn, x, mean, rstd, weight, b, c, h * w, groups, mask)


class _NormSiLUInputGrad(Function):
    """gx = P (w silu'(n) gy) / s."""

    @staticmethod
    def forward(
        ctx: Any,
        gy: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        n: Tensor,
        mean: Tensor,
        rstd: Tensor,
        groups: int,
    ) -> Any:
        ctx.save_for_backward(gy, x, weight, n, mean, rstd)
        ctx.groups = groups
        gn = aten.silu_backward(gy, n)
        return _norm_backward(gn, x, mean, rstd, weight, groups, [True, False, False])[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> Any:
        gy, x, weight, n, mean, rstd = ctx.saved_tensors
        groups = ctx.groups
        b, c, h, w = x.shape
        only_x = [True, False, False]
        size = c // groups * h * w
        w_c, w_g = weight.view(1, c, 1, 1), weight.view(groups, -1)

        def to_channels(of_group: Tensor) -> Tensor:
            return of_group.repeat_interleave(c // groups, dim=1)[:, :, None, None]

        def by_group(of_channel: Tensor) -> Tensor:
            return of_channel.view(b, groups, -1)

        xhat = torch.addcmul(to_channels(-mean * rstd), x, to_channels(rstd))
        u = _norm_backward(v, x, mean, rstd, None, groups, only_x)[0]
        gn = aten.silu_backward(gy, n)
        v_xhat = by_group((v * xhat).sum(dim=(2, 3))).sum(dim=2) / size
        g_xhat = (by_group((gn * xhat).sum(dim=(2, 3))) * w_g).sum(dim=2) / size
        u_gn = (u * gn).sum(dim=(2, 3))
        along = (by_group(u_gn) * w_g).sum(dim=2)  # L of each group

        uw = u.mul_(w_c)
        d_gy = aten.silu_backward(uw, n)
        a = _silu_second(n).mul_(uw).mul_(gy)
        d_weight = u_gn.sum(dim=0) + (a * xhat).sum(dim=(0, 2, 3))
        d_bias = a.sum(dim=(0, 2, 3))

        d_xhat = a.mul_(w_c)
        d_xhat.addcmul_(v, to_channels(-rstd * g_xhat))
        d_xhat.addcmul_(gn, to_channels(-rstd * v_xhat) * w_c)
        d_x = _norm_backward(d_xhat, x, mean, rstd, None, groups, only_x)[0]
        d_x.addcmul_(xhat, to_channels(-along * rstd / size))
        return d_gy, d_x, d_weight, d_bias, None, None, None, None


def _silu_second(n: Tensor) -> Tensor:
    """silu''(n) = sig (1 - sig) (2 + n (1 - 2 sig))."""
    sig = torch.sigmoid(n)
    second = torch.addcmul(n, n, sig, value=-2).add_(2)
    return second.mul_(torch.addcmul(sig, sig, sig, value=-1))


class _SiLU(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return F.silu(x)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        return _SiLUGrad.apply(gy, *ctx.saved_tensors)


class _SiLUGrad(Function):
    """gx = silu'(x) gy."""

    @staticmethod
    def forward(ctx: Any, gy: Tensor, x: Tensor) -> Any:
        ctx.save_for_backward(gy, x)
        return aten.silu_backward(gy, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> Any:
        gy, x = ctx.saved_tensors
        return aten.silu_backward(v, x), _silu_second(x).mul_(v).mul_(gy)


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
        p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx: Any, go: Tensor) -> Any:
        return _AttentionGrad.apply(go, *ctx.saved_tensors)


class _AttentionGrad(Function):
    """(gq, gk, gv) of attention."""

    @staticmethod
    def forward(ctx: Any, go: Tensor, q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> Any:
        scale = q.shape[-1] ** -0.5
        gs = aten._softmax_backward_data(go @ v.mT, p, -1, p.dtype).mul_(scale)
        ctx.save_for_backward(go, q, k, v, p)
        return gs @ k, gs.mT @ q, p.mT @ go

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, uq: Tensor, uk: Tensor, uv: Tensor) -> Any:
        go, q, k, v, p = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        # One product for A = scale (uq k^T + q uk^T).
        a = torch.cat([uq, q], dim=-1) @ torch.cat([k, uk], dim=-1).mT
        a = a.mul_(scale)
        a -= torch.linalg.vecdot(p, a)[..., None]
        gp = go @ v.mT
        gp -= torch.linalg.vecdot(p, gp)[..., None]
        w = go @ uv.mT
        w.addcmul_(a, gp)
        ds = aten._softmax_backward_data(w, p, -1, p.dtype).mul_(scale)
        b, gs = a.mul_(p), gp.mul_(p).mul_(scale)
        d_go = b @ v + p @ uv
        d_q = gs @ uk + ds @ k
        d_k = gs.mT @ uq + ds.mT @ q
        return d_go, d_q, d_k, b.mT @ go, None
