"""A two-layer Mixture of Experts in plain torch, streamed from its file by spans: the bits of the resident model."""

import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import strata
from strata.integrations.torch import TorchStreamer

LAYERS, EXPERTS, HIDDEN, WIDTH, TOP_K, TOKENS = 2, 32, 64, 48, 4, 100
device = "cuda" if torch.cuda.is_available() else "cpu"
router, x = torch.randn(LAYERS, EXPERTS, HIDDEN, device=device), torch.randn(TOKENS, HIDDEN, device=device)
name = "model.layers.{}.mlp.experts.{}".format
weights = {name(layer, tensor): torch.randn(EXPERTS, *shape) * 0.1 for layer in range(LAYERS) for tensor, shape in
           [("gate_up_proj", (2 * WIDTH, HIDDEN)), ("down_proj", (HIDDEN, WIDTH))]}
folder = tempfile.TemporaryDirectory()
save_file(weights, f"{folder.name}/model.safetensors")


def forward(x, spans):  # `spans(layer)` gives runs of neighbouring experts: the first one, and their stacked weights
    for layer in range(LAYERS):
        share, chosen = F.softmax(F.linear(x, router[layer]), -1).topk(TOP_K)
        out = torch.zeros(TOKENS, TOP_K, HIDDEN, device=device)  # summed in the router's order: equal bits
        for first, gate_up, down in spans(layer):
            for k in range(len(gate_up)):  # one grouped product instead, where speed counts
                token, choice = torch.where(chosen == first + k)
                gate, up = F.linear(x[token], gate_up[k]).chunk(2, -1)
                out[token, choice] = F.linear(F.silu(gate) * up, down[k])
        x = x + (out * share[..., None]).sum(1)
    return x


with strata.sources.safetensors(folder.name) as table, TorchStreamer(table.layout(0), gpu_ring=16) as streamer:
    with streamer.begin() as request:
        for layer in table.layers:
            request.extend(table.copies(layer))  # listed ahead: strata copies while the layers before compute

        def streamed(layer):
            taken = 0
            while taken < EXPERTS:
                with request.acquire_span(8) as span:  # up to 8 experts, all of one extension
                    yield taken, *span.tensors().values()
                    taken += len(span)

        result = forward(x, streamed)
resident = {key: value.to(device) for key, value in weights.items()}
whole = forward(x, lambda n: [(0, resident[name(n, "gate_up_proj")], resident[name(n, "down_proj")])])
assert torch.equal(result, whole)
print("equal, bit by bit")
