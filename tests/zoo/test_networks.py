"""The networks: equal to the published graphs at full size, and fit to train at a laptop's."""

import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from remat_lab import zoo
from remat_lab.execution.capture import capture
from remat_lab.schedule import Schedule
from remat_lab.simulate import simulate
from remat_lab.zoo.encoder_decoder import UNet, output_side
from remat_lab.zoo.inception import response_norm
from remat_lab.zoo.layers import CrossEntropy
from remat_lab.zoo.pyramid import PooledBatchNorm
from remat_lab.zoo.sequences import GPT, LSTMLanguageModel

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "kusumoto"

# name: nodes, edges, total bytes, total time, bytes of parameters, file. Time differs from the published graph
# for U-Net alone (231 there): its 4 transposed convolutions count 10 each here and 1 there.
PUBLISHED = {
    "vgg19": (46, 45, 4_004_508_676, 190, 574_668_960, "cg_vgg19.txt"),
    "resnet50": (176, 191, 4_605_604_868, 653, 102_228_384, "cg_resnet50.txt"),
    "resnet152": (516, 565, 9_974_838_276, 1911, 240_771_488, "cg_resnet152.txt"),
    "densenet161": (568, 645, 11_661_796_356, 2008, 114_724_000, "cg_densenet.txt"),
    "googlenet": (134, 162, 1_273_252_884, 665, 53_513_120, "cg_googlenet.txt"),
    "unet": (60, 63, 11_781_604_356, 231 + 4 * 9, 124_401_416, "cg_unet.txt"),
    "pspnet": (385, 422, 7_343_443_000, 1411, 282_017_672, "cg_pspnet.txt"),
}

# What fits a laptop and takes a fraction of a second.
SMALL = {
    "vgg19": dict(batch=2, image=32, width=4, num_classes=5),
    "resnet50": dict(batch=2, image=32, width=4, num_classes=5),
    "resnet152": dict(batch=2, image=32, width=4, num_classes=5),
    "densenet161": dict(batch=2, image=32, width=8, blocks=(2, 2, 2, 2), num_classes=5),
    "googlenet": dict(batch=2, image=48, width=8, num_classes=5),
    "unet": dict(batch=1, image=188, width=2),
    "pspnet": dict(batch=1, image=65, width=4, blocks=(1, 1, 2, 1), num_classes=3),
    "gpt": dict(batch=2, length=8, width=16, heads=2, blocks=2, vocabulary=50),
    "lstm": dict(batch=2, length=8, width=16, vocabulary=50),
    "gpt2-small-random": dict(batch=2, length=8, width=16, heads=2, blocks=2, vocabulary=50),
    "bert-base-random": dict(batch=2, length=8, width=16, heads=2, blocks=2, vocabulary=50),
    "hf-resnet50-random": dict(batch=2, image=32, width=4, num_classes=5, depths=[1, 1, 1, 1]),
}
FROM_TRANSFORMERS = ("gpt2-small-random", "bert-base-random", "hf-resnet50-random")


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small only wait for each other on several threads (200 times longer on a busy machine)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(name):
    if name in FROM_TRANSFORMERS:
        pytest.importorskip("transformers")
    return zoo.build(name, **SMALL[name])


def run(step):
    model, inputs, loss = step
    output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    return output.loss if loss is None else loss(output)


def digraph(graph):
    made = nx.DiGraph()
    made.add_nodes_from((v, {"memory": int(graph.memory[v])}) for v in range(len(graph)))
    made.add_edges_from(graph.edges.tolist())
    return made


# -- the published graphs -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PUBLISHED)
def test_layers_equal_the_published_graph(name):
    """Isomorphic with equal bytes on every node, hence also of equal node count and multiset of bytes.

    On the meta device: neither activations nor parameters are allocated.
    """
    nodes, edges, memory, time, parameters, file = PUBLISHED[name]
    step = zoo.build(name, device="meta")
    assert all(p.device.type == "meta" for p in step.model.parameters())
    assert sum(p.numel() * p.element_size() for p in step.model.parameters()) == parameters
    layers = capture(*step).layers
    assert (len(layers), layers.n_edges) == (nodes, edges)
    assert (layers.total_memory, layers.total_time) == (memory, time)
    if not DATA.is_dir():
        pytest.skip("counts are right; the published graphs are not here to compare node by node")
    published = zoo.load_graph(DATA / file)
    assert sorted(layers.memory) == sorted(published.memory)
    assert nx.vf2pp_is_isomorphic(digraph(layers), digraph(published), node_label="memory")


def test_the_comparison_sees_direction():
    chain = nx.DiGraph([(0, 1), (1, 2), (0, 2), (2, 3)])
    assert not nx.vf2pp_is_isomorphic(chain, chain.reverse())


# -- laptop sizes ---------------------------------------------------------------------------------------------------
def test_small_sizes_are_given_for_every_network():
    assert list(SMALL) == zoo.names()


@pytest.mark.parametrize("name", [name for name in SMALL if name != "resnet152"])  # resnet50's class
def test_small_network_trains(name):
    step = small(name)
    loss = run(step)
    assert loss.shape == () and loss.isfinite()
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in step.model.parameters())


@pytest.mark.parametrize("name", ["gpt", "lstm", *FROM_TRANSFORMERS])
def test_small_network_is_captured(name):
    captured = capture(*small(name))
    trace = simulate(Schedule.vanilla(captured.joint))
    assert trace.peak > 0
    assert trace.baseline == captured.joint.baseline


def test_unrolled_lstm_shows_every_step():
    sizes = dict(SMALL["lstm"], layers=2, unrolled=True)
    layers = capture(*zoo.build("lstm", **sizes)).layers
    assert layers.ops.count("lstm_cell") == 2 * sizes["length"]


def test_the_small_resnet_has_the_same_layers():
    assert len(capture(*small("resnet50")).layers) == PUBLISHED["resnet50"][0]


# -- build ----------------------------------------------------------------------------------------------------------
def test_build_is_reproducible_and_leaves_random_state_alone():
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    one, other, third = (zoo.build("resnet50", **SMALL["resnet50"], seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.inputs[0], other.inputs[0])
    assert torch.equal(one.loss.labels, other.loss.labels)
    for a, b in zip(one.model.parameters(), other.model.parameters()):
        assert torch.equal(a, b)
    assert not torch.equal(one.inputs[0], third.inputs[0])


@pytest.mark.parametrize(
    ("name", "options", "error", "about"),
    [
        ("resnet5", {}, ValueError, "'resnet5'. Closest: resnet50"),
        (None, {}, ValueError, "no network None"),
        ("resnet50", {"length": 3}, TypeError, "resnet50 takes no length; its sizes are batch, image"),
        ("gpt", {"image": 3}, TypeError, "gpt takes no image"),
        ("vgg19", {"batch": 0}, ValueError, "batch must be a positive int, got 0"),
        ("vgg19", {"image": 2.5}, ValueError, "image must be a positive int, got 2.5"),
        ("vgg19", {"depth": 3}, TypeError, "'depth'"),
        ("unet", {"image": 172}, ValueError, "at least 173"),
        ("gpt", {"width": 10, "heads": 3}, ValueError, "width 10 is not a multiple of heads 3"),
    ],
)
def test_wrong_arguments_are_named(name, options, error, about):
    with pytest.raises(error) as raised:
        zoo.build(name, **options)
    assert about in str(raised.value)


def test_the_package_loads_torch_only_when_asked():
    code = (
        "import sys; from remat_lab import zoo; assert 'torch' not in sys.modules; "
        "zoo.build('lstm', batch=1, length=2, width=4, vocabulary=5); assert 'transformers' not in sys.modules; "
        "assert all(callable(getattr(zoo, name)) for name in zoo.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="resnet51"):
        zoo.resnet51  # noqa: B018


# -- the parts --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["googlenet", "pspnet"])
def test_evaluation_leaves_the_auxiliary_outputs_out(name):
    model, inputs, loss = small(name)
    outputs = model(*inputs)
    model.eval()
    prediction = model(*inputs)
    assert isinstance(prediction, torch.Tensor)
    assert prediction.shape == outputs[-1].shape
    assert torch.allclose(loss(prediction), F.cross_entropy(prediction, loss.labels))


def test_losses_of_several_outputs_are_weighted():
    labels = torch.tensor([0, 1])
    one, other = torch.randn(2, 3), torch.randn(2, 3)
    expected = 0.4 * F.cross_entropy(one, labels) + F.cross_entropy(other, labels)
    assert torch.equal(CrossEntropy(labels, (0.4, 1.0))((one, other)), expected)


@pytest.mark.parametrize("image", [173, 200, 221, 572])
def test_unet_output_side_is_the_network_s(image):
    with torch.device("meta"):
        model, x = UNet(width=1), torch.empty(1, 1, image, image)
    assert model(x).shape == (1, 2, output_side(image), output_side(image))
    assert output_side(572) == 388


def test_one_value_per_channel_is_normalized_to_the_bias():
    norm = PooledBatchNorm(3)
    nn.init.normal_(norm.bias)
    x = torch.randn(1, 3, 1, 1, requires_grad=True)
    torch.testing.assert_close(norm(x).flatten(), norm.bias)
    assert torch.equal(norm.running_mean, torch.zeros(3))
    norm(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.zeros_like(x))
    plain = nn.BatchNorm2d(3)
    plain.load_state_dict(norm.state_dict())
    wide = torch.randn(2, 3, 4, 4)
    assert torch.equal(norm(wide), plain(wide))
    assert torch.equal(norm.running_var, plain.running_var)


def test_response_normalization_has_the_published_constants():
    x = torch.rand(1, 1, 1, 1) + 1
    # One channel: the sum over five neighbours is its own square.
    assert torch.allclose(response_norm()(x), x / (1 + 2e-5 * x**2) ** 0.75)


def test_unrolled_and_fused_lstm_agree():
    fused = LSTMLanguageModel(20, 8, layers=2, dropout=0.0)
    unrolled = LSTMLanguageModel(20, 8, layers=2, dropout=0.0, unrolled=True)
    unrolled.tokens, unrolled.head = fused.tokens, fused.head
    for layer, cell in enumerate(unrolled.cells):
        for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(cell, part).data = getattr(fused.lstm, f"{part}_l{layer}").data
    tokens = torch.randint(20, (3, 6))
    torch.testing.assert_close(unrolled(tokens), fused(tokens))


def test_gpt_does_not_look_ahead():
    model = GPT(vocabulary=20, length=6, width=8, heads=2, blocks=2).eval()
    tokens = torch.randint(20, (1, 6))
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 20
    torch.testing.assert_close(model(tokens)[:, :-1], model(changed)[:, :-1])
    assert not torch.allclose(model(tokens)[:, -1], model(changed)[:, -1])
    assert model.head.weight is model.tokens.weight
