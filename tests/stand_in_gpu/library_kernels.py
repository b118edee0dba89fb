"""Operators whose CUDA kernels are those of a library: attention, cuDNN, float8, and what a compiler makes."""

from threading import Thread

import torch
from host_kernels import aten, on_host, rounded_to_tf32, to_device

_RNNS = {0: torch._VF.rnn_relu, 1: torch._VF.rnn_tanh, 2: torch._VF.lstm, 3: torch._VF.gru}
"""By cuDNN's number of their kind (`cudnnRNNMode_t`)."""
_LSTM = 2
_LINE = 32


def below_autograd(kernel):
    """Have a kernel call operators of the host without autograd."""

    def called(*args, **kwargs):
        with torch._C._AutoDispatchBelowAutograd():
            return kernel(*args, **kwargs)

    return called


def _attend(query, key, value, bias, is_causal, scale):
    return aten._scaled_dot_product_flash_attention_for_cpu(
        *map(on_host, (query, key, value)), 0.0, is_causal, attn_mask=on_host(bias), scale=scale
    )


def _attend_backward(grad, query, key, value, bias, output, logsumexp, is_causal, scale):
    tensors = map(on_host, (grad, query, key, value, output, logsumexp))
    found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *tensors, 0.0, is_causal, attn_mask=on_host(bias), scale=scale
    )
    return tuple(map(to_device, found))


def _nothing(dtype=torch.float32):
    return torch.empty(0, dtype=dtype, device="cuda")


def _number():
    return torch.zeros((), dtype=torch.int64, device="cuda")


def flash(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    output, logsumexp = map(to_device, _attend(query, key, value, None, is_causal, scale))
    lengths, state = (_nothing(torch.int32), _nothing(torch.int32)), torch.zeros(2, dtype=torch.uint64, device="cuda")
    rest = (query.size(2), key.size(2), state, _nothing(torch.uint64), _nothing(query.dtype))
    return output, logsumexp, *lengths, *rest


def flash_backward(grad, q, k, v, output, logsumexp, _cq, _ck, _mq, _mk, _p, is_causal, _seed, _offset, *, scale=None):
    return _attend_backward(grad, q, k, v, None, output, logsumexp, is_causal, scale)


def efficient(query, key, value, bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    output, logsumexp = map(to_device, _attend(query, key, value, bias, is_causal, scale))
    return output, logsumexp, _number(), _number()


def efficient_backward(
    grad, q, k, v, bias, output, logsumexp, _seed, _offset, _p, _mask, is_causal=False, *, scale=None
):
    found = _attend_backward(grad, q, k, v, bias, output, logsumexp, is_causal, scale)
    return *found, _nothing(q.dtype)


def cudnn_attention(
    query, key, value, bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
):
    output, logsumexp = map(to_device, _attend(query, key, value, bias, is_causal, scale))
    lengths = (_nothing(), _nothing(), query.size(2), key.size(2))
    return output, logsumexp, *lengths, _number(), _number(), _nothing(query.dtype)


def cudnn_attention_backward(
    grad, q, k, v, output, logsumexp, _seed, _offset, bias, _cq, _ck, _mq, _mk, _p, is_causal, *, scale=None
):
    return _attend_backward(grad, q, k, v, bias, output, logsumexp, is_causal, scale)


def batch_norm(x, weight, bias, mean, variance, training, momentum, eps):
    found = aten.native_batch_norm(*map(on_host, (x, weight, bias, mean, variance)), training, momentum, eps)
    return *map(to_device, found), _nothing(torch.uint8)


def batch_norm_backward(x, grad, weight, mean, variance, saved_mean, saved_variance, eps, reserve):
    tensors = map(on_host, (grad, x, weight, mean, variance, saved_mean, saved_variance))
    return tuple(map(to_device, aten.native_batch_norm_backward(*tensors, True, eps, [True] * 3)))


def flatten_weights(weights, stride, input_size, mode, hidden, projection, layers, batch_first, bidirectional):
    sizes = [-(-weight.numel() // _LINE) * _LINE for weight in weights]
    buffer, begin = torch.zeros(sum(sizes), dtype=weights[0].dtype, device="cuda"), 0
    for weight, size in zip(weights, sizes, strict=True):
        place = buffer[begin : begin + weight.numel()].view(weight.shape)
        on_host(place).copy_(on_host(weight))
        weight.set_(buffer.untyped_storage(), begin, weight.shape, place.stride())
        begin += size
    return buffer


def _as_the_switch_says(value):
    return rounded_to_tf32(value) if torch.backends.cudnn.rnn.fp32_precision == "tf32" else on_host(value)


def _recur(x, weights, hidden, cell, mode, has_bias, layers, batch_first, bidirectional, sizes):
    if sizes:
        raise NotImplementedError("the stand-in has no recurrent layers on packed sequences")
    state = (hidden, cell) if mode == _LSTM else hidden
    found = _RNNS[mode](x, state, weights, has_bias, layers, 0.0, False, bidirectional, batch_first)
    return found if mode == _LSTM else (*found, torch.empty(0))


def rnn(
    x, weights, stride, buffer, hx, cx, mode, hidden, projection, layers, batch_first, p, train, both, sizes, state
):
    inputs = _as_the_switch_says(x), [*map(_as_the_switch_says, weights)], on_host(hx), on_host(cx)
    found = _recur(*inputs, mode, stride == 4, layers, batch_first, both, sizes)
    reserve = torch.empty(16, dtype=torch.uint8, device="cuda")
    return *map(to_device, found), reserve, _nothing(x.dtype) if buffer is None else buffer


def rnn_backward(x, weights, stride, buffer, hx, cx, output, grad, grad_hy, grad_cy, mode, *rest):
    """The gradients by autograd, which computes forward again, in a thread of its own: this one is in a backward."""
    _hidden, _projection, layers, batch_first, _p, _train, both, sizes, *_ = rest
    leaves = [
        _as_the_switch_says(one).detach().clone().requires_grad_() for one in (x, hx, cx, *weights) if one is not None
    ]
    num_states = 1 if cx is None else 2
    box = []

    def compute():
        own_x, *states = leaves[: 1 + num_states]
        hidden, cell = states if cx is not None else (*states, None)
        found = _recur(
            own_x, leaves[1 + num_states :], hidden, cell, mode, stride == 4, layers, batch_first, both, sizes
        )
        pairs = [(of, on_host(one)) for of, one in zip(found, (grad, grad_hy, grad_cy), strict=True) if one is not None]
        results, gradients = zip(*((of, one.to(of.dtype)) for of, one in pairs), strict=True)
        box.extend(torch.autograd.grad(results, leaves, gradients, allow_unused=True))

    thread = Thread(target=compute)
    thread.start()
    thread.join()
    found = [to_device(torch.zeros_like(leaf) if one is None else one) for leaf, one in zip(leaves, box, strict=True)]
    of_x, *of_states = found[: 1 + num_states]
    of_hidden, of_cell = of_states if cx is not None else (*of_states, None)
    return of_x, of_hidden, of_cell, found[1 + num_states :]


def scaled_mm(a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    """Multiply float8 as cuBLAS does, with its demands on sizes, layouts and scales."""
    torch._C._cuda_getCurrentBlasHandle()
    if a.stride(-1) != 1 or b.stride(0) != 1:
        raise RuntimeError(f"_scaled_mm takes a row-major and a column-major matrix: {a.stride()}, {b.stride()}")
    if a.size(1) % 16 or b.size(1) % 16:
        raise RuntimeError(f"Expected trailing dimension to be divisible by 16: {a.shape}, {b.shape}")
    if scale_a.numel() > 1 and (scale_a.shape, scale_b.shape) != ((a.size(0), 1), (1, b.size(1))):
        raise RuntimeError(f"_scaled_mm takes a scale a row and a column: {scale_a.shape}, {scale_b.shape}")
    result = (on_host(a).float() * on_host(scale_a)) @ (on_host(b).float() * on_host(scale_b))
    result = result if bias is None else result + on_host(bias).float()
    return to_device(result.to(out_dtype or a.dtype))


def compile_eagerly(_, graph, inputs):
    """Trace as torch.compile does, and run the operators of the graph one by one in place of Triton's code."""
    from torch._dynamo.backends.debugging import aot_eager

    return aot_eager(graph, inputs)


KERNELS = {
    name: below_autograd(kernel)
    for name, kernel in {
        "_scaled_dot_product_flash_attention": flash,
        "_scaled_dot_product_flash_attention_backward": flash_backward,
        "_scaled_dot_product_efficient_attention": efficient,
        "_scaled_dot_product_efficient_attention_backward": efficient_backward,
        "_scaled_dot_product_cudnn_attention": cudnn_attention,
        "_scaled_dot_product_cudnn_attention_backward": cudnn_attention_backward,
        "cudnn_batch_norm": batch_norm,
        "cudnn_batch_norm_backward": batch_norm_backward,
        "_cudnn_rnn_flatten_weight": flatten_weights,
        "_cudnn_rnn": rnn,
        "_cudnn_rnn_backward": rnn_backward,
        "_scaled_mm": scaled_mm,
    }.items()
}
