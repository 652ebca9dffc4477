"""Two GPUs, one process each: each streams its share of every layer's experts, and an all-reduce a layer joins them.

    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/torch_two_gpus.py

Without GPUs it runs over the software runtime and gloo. Each process reads its own share from the file, so the host
holds each expert once; give each process half of the workers that one would have.
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file

import strata
from strata.integrations.torch import TorchStreamer

LAYERS, EXPERTS, HIDDEN, WIDTH, TOP_K, TOKENS = 2, 32, 64, 48, 4, 100
on_gpu = torch.cuda.is_available()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo", **({"device_id": device} if on_gpu else {}))
torch.manual_seed(0)
router = [torch.randn(EXPERTS, HIDDEN) for _ in range(LAYERS)]
x = torch.randn(TOKENS, HIDDEN).to(device)
name = "model.layers.{}.mlp.experts.{}".format
file = Path(tempfile.gettempdir()) / f"strata-two-gpus-{os.environ['MASTER_PORT']}" / "model.safetensors"
if rank == 0:
    file.parent.mkdir(mode=0o700)
    weights = {name(layer, what): torch.randn(EXPERTS, *shape) * 0.1 for layer in range(LAYERS)
               for what, shape in (("gate_up_proj", (2 * WIDTH, HIDDEN)), ("down_proj", (HIDDEN, WIDTH)))}
    save_file(weights, file)
dist.barrier()
low, high = rank * EXPERTS // world, (rank + 1) * EXPERTS // world      # this process's share of each layer


def forward(x, spans, join):
    for layer in range(LAYERS):
        share, chosen = F.softmax(F.linear(x, router[layer].to(device)), -1).topk(TOP_K)
        out = torch.zeros(TOKENS, TOP_K, HIDDEN, device=device)         # each row is one process's; the others add 0
        for first, gate_up, down in spans(layer):
            for expert in range(len(gate_up)):
                token, choice = torch.where(chosen == first + expert)
                gate, up = F.linear(x[token], gate_up[expert]).chunk(2, -1)
                out[token, choice] = F.linear(F.silu(gate) * up, down[expert])
        join(out)
        x = x + (out * share[..., None]).sum(1)
    return x


with strata.sources.safetensors(file) as table, TorchStreamer(table.layout(0), gpu_ring=8, device=device) as streamer:
    with torch.inference_mode(), streamer.begin() as request:
        for layer in table.layers:
            request.extend(table.copies(layer, range(low, high)))

        def streamed(layer):
            taken = low
            while taken < high:
                with request.acquire_span(min(4, high - taken)) as span:
                    views = span.tensors()
                    yield taken, views["gate_up_proj"], views["down_proj"]
                    taken += len(span)

        result = forward(x, streamed, dist.all_reduce)
if rank == 0:
    whole = {key: value.to(device) for key, value in weights.items()}
    resident = forward(x, lambda n: [(0, whole[name(n, "gate_up_proj")], whole[name(n, "down_proj")])],
                       lambda out: None)
    assert torch.equal(result, resident)
    print(f"{world} processes, equal, bit by bit")
    file.unlink()
    file.parent.rmdir()
dist.barrier()
dist.destroy_process_group()
