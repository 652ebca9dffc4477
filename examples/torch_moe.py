"""A two-layer Mixture of Experts in plain torch whose experts stay in a safetensors file. Runs with and without a GPU.

It streams the experts by spans and compares the result, bit by bit, with the same model whose experts are resident.
"""

import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import strata
from strata.integrations.torch import TorchStreamer

LAYERS, EXPERTS, HIDDEN, WIDTH, TOP_K, TOKENS = 2, 32, 64, 48, 4, 100
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
router = [torch.randn(EXPERTS, HIDDEN, device=device) for _ in range(LAYERS)]
folder = tempfile.TemporaryDirectory()
save_file({f"model.layers.{layer}.mlp.experts.{name}": torch.randn(EXPERTS, *shape) * 0.1 for layer in range(LAYERS)
           for name, shape in (("gate_up_proj", (2 * WIDTH, HIDDEN)), ("down_proj", (HIDDEN, WIDTH)))},
          f"{folder.name}/model.safetensors")


def forward(x, spans):
    """`spans(layer)` gives runs of experts: the first, how many, and their two stacked weights."""
    for layer in range(LAYERS):
        share, chosen = F.softmax(F.linear(x, router[layer]), -1).topk(TOP_K)
        out = torch.zeros(TOKENS, TOP_K, HIDDEN, device=device)       # summed in the router's order: equal bits
        for first, number, gate_up, down in spans(layer):
            for expert in range(number):                              # one grouped product instead, where speed counts
                token, choice = torch.where(chosen == first + expert)
                gate, up = F.linear(x[token], gate_up[expert]).chunk(2, -1)
                out[token, choice] = F.linear(F.silu(gate) * up, down[expert])
        x = x + (out * share[..., None]).sum(1)
    return x


x = torch.randn(TOKENS, HIDDEN, device=device)
with strata.sources.safetensors(folder.name) as table, TorchStreamer(table.layout(0), gpu_ring=16) as streamer:
    with torch.inference_mode(), streamer.begin() as request:
        for layer in table.layers:
            request.extend(table.copies(layer))                       # all of them: strata copies ahead of the compute

        def streamed(layer):
            taken = 0
            while taken < EXPERTS:
                with request.acquire_span(min(8, EXPERTS - taken)) as span:
                    views = span.tensors()
                    yield taken, len(span), views["gate_up_proj"], views["down_proj"]
                    taken += len(span)

        result = forward(x, streamed)
    print(request.counters)

whole = load_file(f"{folder.name}/model.safetensors", device)
name = "model.layers.{}.mlp.experts.{}".format
resident = forward(x, lambda layer: [(0, EXPERTS, whole[name(layer, "gate_up_proj")], whole[name(layer, "down_proj")])])
assert torch.equal(result, resident)
print("equal, bit by bit")
