"""Hand-derived second derivatives, against finite differences and against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

from egc.nn.double_backward import (
    Conv2d,
    NormSiLU,
    SiLU,
    attention,
    double_backward,
    input_gradient_only,
)

DOUBLE = torch.float64


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=DOUBLE).requires_grad_(True)


def conv(stride, kernel):
    layer = Conv2d(3, 4, kernel, stride=stride, padding=kernel // 2).to(DOUBLE)
    return layer, random(2, 3, 5, 5)


def norm():
    layer = NormSiLU(2, 4).to(DOUBLE)
    with torch.no_grad():
        layer.weight.copy_(random(4, seed=3))
        layer.bias.copy_(random(4, seed=4))
    return layer, random(2, 4, 3, 3)


LAYERS = {
    "3x3": lambda: conv(1, 3),
    "strided": lambda: conv(2, 3),
    "1x1": lambda: conv(1, 1),
    "norm": norm,
}


@pytest.mark.parametrize("name", LAYERS)
def test_first_derivative(name):
    layer, x = LAYERS[name]()

    def twice(x, weight, bias):
        with double_backward():
            return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, x)

    assert gradcheck(twice, (x, layer.weight, layer.bias))
    torch.testing.assert_close(twice(x, layer.weight, layer.bias), layer(x))


@pytest.mark.parametrize("name", LAYERS)
def test_derivative_of_the_input_gradient(name):
    """gradcheck of gx itself, as a function of gy, x and the weights."""
    layer, x = LAYERS[name]()
    gy = random(*layer(x).shape, seed=1)

    def input_gradient(gy, x, weight, bias):
        with double_backward():
            y = torch.func.functional_call(layer, {"weight": weight, "bias": bias}, x)
        with input_gradient_only():
            return torch.autograd.grad(y, x, gy, create_graph=True)[0]

    assert gradcheck(input_gradient, (gy, x, layer.weight, layer.bias))


@pytest.mark.parametrize("name", LAYERS)
def test_second_derivative_in_general(name):
    """Outside of the score pass the layers remain twice differentiable in everything."""
    layer, x = LAYERS[name]()

    def twice(x, weight, bias):
        with double_backward():
            return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, x)

    assert gradgradcheck(twice, (x, layer.weight, layer.bias))


def test_silu_twice():
    def twice(x):
        with double_backward():
            return SiLU()(x)

    x = random(2, 3, 2, 2)
    assert gradcheck(twice, (x,))
    assert gradgradcheck(twice, (x,))
    torch.testing.assert_close(twice(x), F.silu(x))


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_norms_know_any_layout_of_maps_and_of_their_gradients(layout):
    """The kernels take a layout for granted, and would read other numbers in another."""
    layer, x = norm()
    gy = random(2, 3, 3, 4, seed=1).permute(0, 3, 1, 2)  # neither is told which it is

    def gradients(x):
        with double_backward():
            y = layer(x)
        with input_gradient_only():
            (gx,) = torch.autograd.grad(y, x, gy, create_graph=True)
        first = torch.autograd.grad(y, (x, layer.weight, layer.bias), gy.contiguous())
        return [gx, *first, *torch.autograd.grad(gx.square().sum(), (x, layer.weight))]

    plain = gradients(x)
    laid_out = x.detach().contiguous(memory_format=layout).requires_grad_(True)
    for a, b in zip(plain, gradients(laid_out), strict=True):
        torch.testing.assert_close(a, b)
    y = F.silu(F.group_norm(x, 2, layer.weight, layer.bias))
    torch.testing.assert_close(plain[0], torch.autograd.grad(y, x, gy)[0])


def qkv():
    return random(2, 3, 4), random(2, 5, 4, seed=1), random(2, 5, 4, seed=2)


def test_attention_and_its_first_derivative():
    def twice(q, k, v):
        with double_backward():
            return attention(q, k, v)

    assert gradcheck(twice, qkv())
    torch.testing.assert_close(twice(*qkv()), F.scaled_dot_product_attention(*qkv()))


def test_attention_second_derivative():
    def twice(q, k, v):
        with double_backward():
            return attention(q, k, v)

    assert gradgradcheck(twice, qkv())


def test_fused_attention_is_used_outside():
    """Also for the layout the U-Net has, where the width is not the last axis in memory."""
    q, k, v = (torch.randn(2, 4, 8, 16, requires_grad=True).mT for _ in range(3))
    assert "Flash" in str(attention(q, k, v).grad_fn)


def test_plain_layers_are_pytorchs_own():
    layer, x = norm()
    expected = F.silu(F.group_norm(x, 2, layer.weight, layer.bias))
    torch.testing.assert_close(layer(x), expected)
    assert "NormSiLU" not in str(layer(x).grad_fn)
