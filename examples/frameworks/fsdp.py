"""Train a network that is sharded over processes (FSDP2) with EdgeAwareLoss.

torchrun --nproc_per_node=2 examples/frameworks/fsdp.py

With ``sync_normalizer=True`` the gradient is that of one process with the whole batch. It needs PyTorch only.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from edgeloss import EdgeAwareLoss
from squares import squares


def network_of(device: str) -> nn.Sequential:
    """Return a network with the same weights in all processes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1)).to(device)


def shard(network: nn.Sequential, device: str) -> None:
    """Leave each process a part of the parameters, and so of the gradients and the optimizer's state."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for module in (network[0], network[2], network):
        fully_shard(module, mesh=mesh)


def train(device: str, steps: int = 30) -> float:
    """Train in each process of the group, and return the last loss."""
    rank, world = dist.get_rank(), dist.get_world_size()
    network = network_of(device)
    shard(network, device)
    criterion = EdgeAwareLoss(sync_normalizer=True).to(device)  # it has no parameters: not sharded
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    images, labels = (values.to(device) for values in squares(16).tensors)
    for _ in range(steps):
        loss = criterion(network(images[rank::world]), labels[rank::world])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.all_reduce(loss.detach_())
    return loss.item() / world


def main() -> None:
    """Join the group of processes, train, and print the last loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    loss = train(device)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes: loss {loss:.4f}")
    dist.barrier()  # a process that ends while another communicates may take it along
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
