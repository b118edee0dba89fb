"""GPT is GPT-2, Llama is Llama 3, the ResNets are torchvision's, the MLP is the AMP recipe's; all can recompute."""

import copy
import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampsweep.models.activation_checkpointing import CheckpointedModel
from ampsweep.models.gpt import GPT
from ampsweep.models.llama import Llama, Rotation
from ampsweep.models.mlp import MLP
from ampsweep.models.resnet import ResNet


def tiny(**changes):
    sizes = {"vocab_size": 11, "seq_len": 8, "num_layers": 2, "hidden_size": 12, "num_heads": 3} | changes
    torch.manual_seed(0)
    return GPT(**sizes)


def tiny_llama(**changes):
    torch.manual_seed(0)
    return Llama(11, num_layers=2, hidden_size=24, num_heads=6, num_kv_heads=2, intermediate_size=40, **changes)


def test_gpt2_sizes_have_gpt2s_parameter_counts():
    for sizes, num_parameters in (((12, 768, 12), 124_439_808), ((48, 1600, 25), 1_557_611_200)):
        with torch.device("meta"):
            model = GPT(50257, 1024, *sizes)
        assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    leaves = {type(module) for module in model.modules() if not list(module.children())}
    assert leaves == {nn.Embedding, nn.Linear, nn.LayerNorm, nn.Dropout}, "modules that reports can name"


def test_llamas_sizes_have_its_parameter_count():
    with torch.device("meta"):
        model = Llama(128256, 16, 2048, 32, 8, 8192)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_235_814_400
    leaves = {type(module) for module in model.modules() if not list(module.children())}
    assert leaves == {nn.Embedding, nn.Linear, nn.RMSNorm}, "modules that reports can name"


@pytest.mark.parametrize("make", [tiny, tiny_llama])
def test_a_token_does_not_see_its_future(make):
    model, tokens = make(), torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 8, 11)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_it_computes_what_hugging_faces_gpt2_computes():
    transformers = pytest.importorskip("transformers")
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=12, n_layer=2, n_head=3, **dropout)
    theirs, ours = transformers.GPT2LMHeadModel(config).eval(), tiny()
    with torch.no_grad():
        for (name, mine), other in zip(ours.named_parameters(), theirs.transformer.parameters(), strict=True):
            other.normal_(std=0.3)
            # Hugging Face keeps GPT-2's Conv1D, whose weight is that of a transposed linear layer.
            mine.copy_(other.T if mine.dim() == 2 and "embedding" not in name else other)
    tokens = torch.randint(11, (2, 8))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


def test_it_trains_as_hugging_faces_llama_trains():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 11, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "rms_norm_eps": 1e-5}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, **heads, tie_word_embeddings=True)
    theirs, ours = transformers.LlamaForCausalLM(config), tiny_llama(rope_base=10000.0)
    renamed = (
        *(("model.layers", "blocks"), ("embed_tokens", "token_embedding"), ("model.", "")),
        *(("input_layernorm", "attention_norm"), ("post_attention_layernorm", "feed_forward_norm")),
        *(("mlp.gate_proj", "feed_forward.gate"), ("mlp.up_proj", "feed_forward.expansion")),
        *(("mlp.down_proj", "feed_forward.projection"), ("self_attn.o_proj", "attention.projection")),
    )

    def as_ours(of):
        """Tensors of their parameters by our names, in which one layer computes queries, keys and values."""
        found = {}
        for name, parameter in theirs.named_parameters():
            for old, new in renamed:
                name = name.replace(old, new)
            if "self_attn" in name:
                name = re.sub(r"self_attn\.._proj", "attention.qkv", name)
            found[name] = torch.cat([found[name], of(parameter)]) if name in found else of(parameter)
        return found

    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    ours.load_state_dict(as_ours(lambda parameter: parameter.detach()))
    tokens = torch.randint(11, (2, 9))
    loss = F.cross_entropy(ours(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    expected = theirs(tokens, labels=tokens).loss
    expected.backward()
    torch.testing.assert_close(loss, expected)
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    torch.testing.assert_close(gradients, as_ours(lambda parameter: parameter.grad), rtol=1e-3, atol=1e-5)


def test_positions_and_norms_are_float32_in_every_mode():
    """Position 257 is 256 in bfloat16, and 300 ** 2 is infinite in float16."""
    x = torch.randn(1, 2, 400, 8).bfloat16()
    low, high = (Rotation.of(400, 8, 10000.0, x.device)(each) for each in (x, x.float()))
    assert (low.dtype, torch.equal(low, high.bfloat16())) == (torch.bfloat16, True)
    model = tiny_llama().half()
    large = torch.full((1, 1, 24), 300.0, dtype=torch.float16)
    torch.testing.assert_close(model.norm(large), torch.ones_like(large))


def test_initial_weights_have_gpt2s_spread():
    torch.manual_seed(0)
    model = GPT(vocab_size=500, seq_len=64, num_layers=3, hidden_size=192, num_heads=3)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        elif "norm" in name:
            assert (parameter == 1).all()
        else:
            std = 0.02 / math.sqrt(6) if name.endswith("projection.weight") else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=0.05), name
    tokens, targets = torch.randint(500, (4, 64)), torch.randint(500, (256,))
    assert F.cross_entropy(model(tokens).flatten(0, 1), targets).item() == pytest.approx(math.log(500), rel=0.05)


@pytest.mark.parametrize("make", [tiny, tiny_llama])
def test_it_compiles_without_a_graph_break(make):
    model, tokens = make(), torch.randint(11, (2, 8))
    model.gradient_checkpointing_enable()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))
    compiled(tokens).mean().backward()


def test_dropout_acts_in_training_alone():
    model, tokens = tiny(dropout=0.5), torch.randint(11, (2, 8))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_a_resnet_is_torchvisions():
    for depth, num_parameters in ((18, 11_689_512), (50, 25_557_032)):
        with torch.device("meta"):
            model = ResNet(depth, num_classes=1000, in_channels=3, image_size=224)
        assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    names = set(model.state_dict())
    assert len(names) == 320  # torchvision.models.resnet50().state_dict()
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.downsample.0.weight", "layer4.2.bn3.bias"} <= names
    block = model.layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))


@pytest.mark.parametrize(("image_size", "last_side"), [(8, 1), (64, 8), (65, 3), (224, 7)])
def test_the_stem_fits_the_image(image_size, last_side):
    last = []
    with torch.device("meta"):
        model = ResNet(18, num_classes=10, in_channels=1, image_size=image_size)
        model.layer4[-1].register_forward_hook(lambda module, inputs, output: last.append(output.shape))
        assert model(torch.empty(2, 1, image_size, image_size)).shape == (2, 10)
    assert last == [(2, 512, last_side, last_side)]


def test_it_keeps_the_layout_and_the_dtypes_asked_for():
    torch.manual_seed(0)
    model, images, inside = ResNet(18, num_classes=10, in_channels=3, image_size=8), torch.randn(2, 3, 8, 8), []
    assert model.layer3[0].conv2.weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.02), "He's spread"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(images).dtype is torch.bfloat16
    assert model.bn1.running_mean.dtype is torch.float32, "normalization stays in full precision"
    assert model.bn1.running_mean.any()
    expected = model.eval()(images)
    model.layer1[0].register_forward_hook(lambda module, inputs, output: inside.append(output))
    model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(images.contiguous(memory_format=torch.channels_last)), expected)
    assert inside[0].is_contiguous(memory_format=torch.channels_last)


def test_the_mlp_is_the_recipes_network():
    with torch.device("meta"):
        model = MLP(in_features=4096, hidden_size=4096, out_features=4096, num_layers=3)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3 * (4096 * 4096 + 4096)
    torch.manual_seed(0)
    model = MLP(6, 7, 3, num_layers=3)
    torch.manual_seed(0)
    layers = nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 3)
    recipe, x = nn.Sequential(nn.Flatten(), *layers), torch.randn(4, 2, 3)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), recipe.parameters(), strict=True))
    assert torch.equal(model(x), recipe(x))
    assert [parameter.shape for parameter in MLP(5, 7, 3, num_layers=1).parameters()] == [(3, 5), (3,)]


def test_impossible_sizes_are_refused():
    gpt = {"vocab_size": 11, "seq_len": 8, "num_layers": 2, "hidden_size": 12, "num_heads": 3}
    llama = {"vocab_size": 11, "num_layers": 2, "hidden_size": 24, "num_heads": 6, "num_kv_heads": 2}
    llama["intermediate_size"] = 40
    resnet = {"depth": 18, "num_classes": 10, "in_channels": 3, "image_size": 32}
    mlp = {"in_features": 5, "hidden_size": 7, "out_features": 3, "num_layers": 3}
    for build, sizes, changes, sentence in (
        *((GPT, gpt, {name: 0}, f"{name} must be at least 1, got 0") for name in gpt),
        (GPT, gpt, {"num_heads": 5}, "hidden_size must be a multiple of num_heads, got 12 and 5"),
        *((Llama, llama, {name: 0}, f"{name} must be at least 1, got 0") for name in llama),
        (Llama, llama, {"hidden_size": 18}, r"hidden_size must be a multiple of 2 \* num_heads, got 18 and 6"),
        (Llama, llama, {"num_kv_heads": 4}, "num_heads must be a multiple of num_kv_heads, got 6 and 4"),
        (GPT, gpt, {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        (ResNet, resnet, {"depth": 34}, "depth must be 18 or 50, got 34"),
        *((ResNet, resnet, {"image_size": size}, f"from 8 to 224, got {size}") for size in (7, 225)),
        *((ResNet, resnet, {name: 0}, f"{name} must be at least 1") for name in ("num_classes", "in_channels")),
        *((MLP, mlp, {name: 0}, f"{name} must be at least 1, got 0") for name in mlp),
    ):
        with pytest.raises(ValueError, match=sentence):
            build(**sizes | changes)
    with pytest.raises(ValueError, match=r"holds 8 positions .* got 9 tokens"):
        GPT(**gpt)(torch.zeros(1, 9, dtype=torch.int64))


MODELS = {
    "gpt": lambda: (GPT(11, 8, num_layers=3, hidden_size=12, num_heads=3, dropout=0.2), torch.randint(11, (2, 8))),
    "llama": lambda: (tiny_llama(), torch.randint(11, (2, 8))),
    "mlp": lambda: (MLP(5, 7, 3, num_layers=4), torch.randn(4, 5)),
    "resnet": lambda: (ResNet(18, num_classes=4, in_channels=1, image_size=8), torch.randn(3, 1, 8, 8)),
}


@pytest.fixture(params=MODELS)
def pair(request):
    """A model, its twin with checkpointing, and an input."""
    torch.manual_seed(0)
    model, inputs = MODELS[request.param]()
    twin = copy.deepcopy(model)
    twin.gradient_checkpointing_enable()
    return model, twin, inputs


def train(model, inputs, penalty=False):
    torch.manual_seed(1)  # dropout
    loss = model(inputs).float().square().mean()
    if penalty:  # makes backward pass a block twice
        gradients = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
        loss = loss + sum(gradient.square().sum() for gradient in gradients)
    loss.backward()
    return loss


def kept_for_backward(model, inputs):
    """Bytes of distinct tensors that autograd keeps under autocast from forward to backward, without parameters."""
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, nn.Identity())
    with hooks, torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(inputs).requires_grad
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return sum(num_bytes for place, num_bytes in storages.items() if place not in own)


def test_loss_gradients_and_running_statistics_are_the_same(pair):
    model, twin, inputs = pair
    for penalty in (False, not isinstance(model, GPT | Llama)):
        assert torch.equal(train(model, inputs, penalty), train(twin, inputs, penalty))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train(model, inputs)
        train(twin, inputs)
    gradients = [[parameter.grad for parameter in each.parameters()] for each in (model, twin)]
    assert all(map(torch.equal, *gradients))
    assert all(map(torch.equal, model.buffers(), twin.buffers()))
    assert {module.momentum for module in twin.modules() if isinstance(module, nn.BatchNorm2d)} <= {0.1}
    assert list(model.state_dict()) == list(twin.state_dict())


def test_fewer_bytes_are_kept_for_backward(pair, monkeypatch):
    model, twin, inputs = pair
    assert kept_for_backward(twin, inputs) < 0.7 * kept_for_backward(model, inputs)
    monkeypatch.setattr("ampsweep.models.activation_checkpointing.checkpoint", None)
    with torch.no_grad():
        twin(inputs)  # nothing is checkpointed where no backward follows


class Net(CheckpointedModel):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))

    def forward(self, x):
        return self.run(self.block, x)


def test_a_compiled_model_updates_running_statistics_once():
    torch.manual_seed(0)
    eager, images = Net(), torch.randn(2, 1, 8, 8)
    model = copy.deepcopy(eager)
    model.gradient_checkpointing_enable()
    train(eager, images)
    train(torch.compile(model, backend="aot_eager", fullgraph=True), images)
    torch.testing.assert_close([*eager.buffers()], [*model.buffers()])
    torch.testing.assert_close([p.grad for p in eager.parameters()], [p.grad for p in model.parameters()])
