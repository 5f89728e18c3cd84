"""One process of the distributed test: a planned model and an eager twin under DistributedDataParallel."""

import copy
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def network():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(32, 4))


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(512, 32, generator=generator), torch.randint(0, 4, (512,), generator=generator)


def measured_peak(forward, optimizer):
    """Bytes of one whole step, the gradients that it leaves included."""
    from remat_lab.execution.measure import meter_for

    optimizer.zero_grad()
    meter = meter_for("cpu")
    with meter:
        forward().backward()
        meter.mark()
    return int(meter.levels.during.max())


def main(rank, world, meeting, result):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    import remat_lab as rl

    share = slice(rank * 512 // world, (rank + 1) * 512 // world)
    images, labels = (tensor[share].clone() for tensor in batch())
    model = network()
    twin = copy.deepcopy(model)
    cap = rl.calibrate(rl.capture(model, images, F.cross_entropy, targets=labels), k=1, cache=False)
    plan = rl.solve(cap, "min", "chen")
    ours = DistributedDataParallel(rl.apply(cap, plan, fallback="error"))
    theirs = DistributedDataParallel(twin)
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-2) for net in (ours, theirs)]
    losses, first = [], None
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        planned = ours(images, targets=labels)
        eager = F.cross_entropy(theirs(images), labels)
        planned.backward()
        eager.backward()
        first = first or [p.grad.clone() for p in model.parameters()]
        losses.append((planned.item(), eager.item()))
        same = all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters()))
        for optimizer in optimizers:
            optimizer.step()
    peaks = [measured_peak(lambda: ours(images, targets=labels), optimizers[0])]
    peaks.append(measured_peak(lambda: F.cross_entropy(theirs(images), labels), optimizers[1]))
    if rank == 0:
        torch.save(
            {
                "losses": losses,
                "first": first,
                "same": same,
                "recomputed": plan.schedule.recomputed_ops,
                "budget": plan.budget,
                "peaks": peaks,
            },
            result,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
